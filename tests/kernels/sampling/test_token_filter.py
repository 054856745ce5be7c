"""Top-k, top-p and min-p: exactly the tokens that may be drawn."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from baton.kernels.sampling.token_filter import FIRST_CANDIDATES, Filters, reference, shortlist

NO_INPUT: Any = None
"""Warpers do not look at it."""
PROBABILITIES = [0.05, 0.4, 0.2, 0.3, 0.05]  # best first: tokens 1, 3, 2, then 0 and 4 alike


def filtered(scores: torch.Tensor, top_k: Any, top_p: Any, min_p: Any) -> list[set[int]]:
    """By row: the tokens that may be drawn. Parameters are one value, or one a row."""
    num_rows = len(scores)
    filters = Filters(
        torch.tensor(top_k).expand(num_rows),
        torch.tensor(top_p).expand(num_rows),
        torch.tensor(min_p).expand(num_rows),
    )
    listed = shortlist(scores, filters)
    may_draw = [set(row.nonzero().flatten().tolist()) for row in scores >= listed.floor]
    if listed.is_complete:
        on_list = listed.scores >= listed.floor
        for row, tokens, is_on in zip(may_draw, listed.tokens, on_list, strict=True):
            assert set(tokens[is_on].tolist()) == row
    return may_draw


def kept(scores: list[float], top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> set[int]:
    (tokens,) = filtered(torch.tensor([scores]), top_k, top_p, min_p)
    return tokens


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
    scores = torch.tensor([[-math.inf, 1.0, 0.0]])
    listed = shortlist(
        scores, Filters(torch.tensor([2]), torch.tensor([0.9999]), torch.tensor([0.01]))
    )

    assert (scores >= listed.floor).tolist() == [[False, True, True]]


def test_a_peaked_row_is_listed_whole_and_a_flat_one_is_not() -> None:
    peaked = torch.arange(1000.0).neg().unsqueeze(0)
    limits = Filters(torch.tensor([0]), torch.tensor([1.0]), torch.tensor([1e-9]))

    assert shortlist(peaked, limits).is_complete
    assert shortlist(peaked, limits).scores.shape == (1, FIRST_CANDIDATES)
    assert not shortlist(torch.zeros(1, 1000), limits).is_complete


def test_tokens_tied_for_the_last_place_of_top_k_count_towards_top_p() -> None:
    """Ties beyond the first candidates hold most of the mass here."""
    scores = [1.0] + [0.0] * 2000

    assert kept(scores, top_k=5, top_p=0.5) == set(range(2001))
    assert kept([9.0] + [0.0] * 2000, top_k=5, top_p=0.5) == {0}


def test_a_rows_nucleus_does_not_depend_on_the_rows_beside_it() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(6, 4000, generator=generator) * torch.tensor([0.1, 1, 2, 3, 5, 9])[:, None]
    top_k, top_p = [0, 700, 3, 0, 50, 0], [0.99, 0.9, 0.999, 0.5, 1.0, 0.95]

    together = filtered(scores, top_k, top_p, 0.0)

    alone = [filtered(scores[i : i + 1], top_k[i], top_p[i], 0.0)[0] for i in range(6)]
    assert together == alone


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

    assert filtered(scores, [0, 2, 0], [1.0, 1.0, 0.39], [0.126, 0.0, 0.0]) == [
        {1, 2, 3},
        {1, 3},
        {1},
    ]


@pytest.mark.parametrize("top_k", [0, 1, 30, 200])
@pytest.mark.parametrize("top_p", [0.1, 0.9, 1.0])
@pytest.mark.parametrize("min_p", [0.0, 0.02])
def test_the_tokens_kept_are_those_of_transformers(top_k: int, top_p: float, min_p: float) -> None:
    scores = torch.randn(8, 500, generator=torch.Generator().manual_seed(top_k)) * 3
    expected = scores
    if top_k:
        expected = TopKLogitsWarper(top_k)(NO_INPUT, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(NO_INPUT, expected)
    if min_p:
        expected = MinPLogitsWarper(min_p)(NO_INPUT, expected)

    may_draw = filtered(scores, top_k, top_p, min_p)

    assert may_draw == [set(row.nonzero().flatten().tolist()) for row in expected > -math.inf]


def test_equals_of_the_last_of_top_k_count_though_they_are_beyond_the_list() -> None:
    row = [1.0] + [0.0] * 999
    filters = Filters(torch.tensor([2]), torch.tensor([0.01]), torch.tensor([0.0]))

    floor = shortlist(torch.tensor([row]), filters).floor.item()

    assert {t for t, score in enumerate(row) if score >= floor} == reference(row, 2, 0.01, 0.0)
    assert floor == 0.0
