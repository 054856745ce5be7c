"""Top-k, top-p and min-p: exactly the tokens that may be drawn."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kernels.token_filter import filter_tokens, reference

PROBABILITIES = [0.05, 0.4, 0.2, 0.3, 0.05]  # best first: tokens 1, 3, 2, then 0 and 4 alike


def kept(scores: list[float], top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> set[int]:
    filtered = filter_tokens(
        torch.tensor([scores]),
        torch.tensor([top_k]),
        torch.tensor([top_p]),
        torch.tensor([min_p]),
    )
    (row,) = filtered.tolist()
    assert all(after in (before, -math.inf) for after, before in zip(row, f32(scores), strict=True))
    return {token for token, score in enumerate(row) if score > -math.inf}


def f32(values: list[float]) -> list[float]:
    exact: list[float] = torch.tensor(values).tolist()
    return exact


def logs(probabilities: list[float]) -> list[float]:
    return [math.log(p) for p in probabilities]


def test_nothing_is_filtered_by_default() -> None:
    assert kept(logs(PROBABILITIES)) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("top_k", "expected"), [(1, {1}), (2, {1, 3}), (3, {1, 2, 3}), (5, {0, 1, 2, 3, 4})]
)
def test_top_k_keeps_the_k_most_probable(top_k: int, expected: set[int]) -> None:
    assert kept(logs(PROBABILITIES), top_k=top_k) == expected


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (1e-9, {1}),
        (0.39, {1}),
        (0.41, {1, 3}),
        (0.69, {1, 3}),
        (0.71, {1, 2, 3}),
        (0.9999, {0, 1, 2, 3, 4}),
    ],
)
def test_top_p_keeps_the_fewest_that_hold_its_mass(top_p: float, expected: set[int]) -> None:
    assert kept(logs(PROBABILITIES), top_p=top_p) == expected


@pytest.mark.parametrize(
    ("min_p", "expected"),
    [(0.1, {0, 1, 2, 3, 4}), (0.126, {1, 2, 3}), (0.51, {1, 3}), (1.0, {1})],
)
def test_min_p_is_relative_to_the_best(min_p: float, expected: set[int]) -> None:
    assert kept(logs(PROBABILITIES), min_p=min_p) == expected


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    assert kept(logs(PROBABILITIES), top_p=0.75) == {1, 2, 3}
    assert kept(logs(PROBABILITIES), top_k=3, top_p=0.75) == {1, 3}  # 0.4 + 0.3 of 0.9


def test_equal_tokens_stay_or_go_together() -> None:
    assert kept([1.0, 1.0, 0.0], top_k=1) == {0, 1}
    assert kept([1.0, 1.0, 0.0], top_p=1e-6) == {0, 1}
    assert kept([2.0] * 300, top_k=5, top_p=0.5) == set(range(300))


def test_a_flat_distribution_needs_more_candidates_than_are_looked_at_first() -> None:
    scores = [-0.001 * token for token in range(3000)]

    survivors = kept(scores, top_p=0.9)

    assert survivors == reference(f32(scores), 0, 0.9, 0.0)
    assert len(survivors) > 1024


def test_forbidden_tokens_stay_forbidden() -> None:
    assert kept([-math.inf, 1.0, 0.0], top_k=3, top_p=0.9999) == {1, 2}


@given(
    st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=40),
    st.integers(0, 45),
    st.sampled_from([1e-6, 0.1, 0.333, 0.62, 0.9, 0.99, 1.0]),
    st.sampled_from([0.0, 1e-3, 0.07, 0.5, 1.0]),
)
@settings(max_examples=200, deadline=None)
def test_the_tokens_kept_are_as_defined(
    scores: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    assert kept(scores, top_k, top_p, min_p) == reference(scores, top_k, top_p, min_p)


def test_each_row_has_its_own_limits() -> None:
    scores = torch.tensor([logs(PROBABILITIES)] * 3)

    filtered = filter_tokens(
        scores,
        torch.tensor([0, 2, 0]),
        torch.tensor([1.0, 1.0, 0.39]),
        torch.tensor([0.126, 0.0, 0.0]),
    )

    assert [set(row.isfinite().nonzero().flatten().tolist()) for row in filtered] == [
        {1, 2, 3},
        {1, 3},
        {1},
    ]
