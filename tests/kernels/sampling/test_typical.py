"""Typical-p: against its definition, transformers, and a distribution worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import TypicalLogitsWarper

from baton.kernels.sampling.typical import FIRST_CANDIDATES, keep_typical, reference

NO_INPUT: Any = None
"""Warpers do not look at it."""


def kept(scores: list[float], typical_p: float) -> set[int]:
    (row,) = keep_typical(torch.tensor([scores]), torch.tensor([typical_p])).tolist()
    return {token for token, score in enumerate(row) if score > -math.inf}


def test_the_most_probable_token_may_be_too_dull_to_be_typical() -> None:
    """Information 0.92 and 2.12, expected 1.64: the five others are nearer to it."""
    scores = [math.log(p) for p in (0.4, 0.12, 0.12, 0.12, 0.12, 0.12)]

    assert kept(scores, 0.59) == {1, 2, 3, 4, 5}
    assert kept(scores, 0.61) == {0, 1, 2, 3, 4, 5}


def test_tokens_as_far_from_typical_stay_or_go_together() -> None:
    assert kept([0.0] * 700, 0.1) == set(range(700))


def test_forbidden_tokens_count_for_nothing_and_stay_forbidden() -> None:
    free = [1.0, 0.0, -1.0, 2.5]

    assert kept([*free, -math.inf, -math.inf], 0.6) == kept(free, 0.6)


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=30),
    st.sampled_from([0.05, 0.3, 0.61, 0.9, 0.99]),
)
@settings(deadline=None)
def test_the_tokens_kept_are_as_defined(scores: list[float], typical_p: float) -> None:
    """But for those so near the limit that float32 cannot tell."""
    exact = torch.tensor(scores).double().tolist()
    nearby = [reference(exact, typical_p * (1 + shift)) for shift in (-1e-5, 0, 1e-5)]

    tokens = kept(scores, typical_p)

    always, ever = set.intersection(*nearby), set.union(*nearby)
    assert tokens in nearby or always - near_ties(exact) <= tokens <= ever | near_ties(exact)


def near_ties(scores: list[float]) -> set[int]:
    """Tokens whose distance from typical differs from another's by no more than rounding."""
    logprobs = torch.tensor(scores, dtype=torch.float64).log_softmax(-1)
    distance = (-logprobs - -(logprobs.exp() * logprobs).sum()).abs()
    gap = (distance.unsqueeze(0) - distance.unsqueeze(1)).abs().fill_diagonal_(math.inf)
    return set((gap.amin(-1) < 1e-4).nonzero().flatten().tolist())


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])
@pytest.mark.parametrize("typical_p", [0.05, 0.5, 0.95])
def test_the_tokens_kept_are_those_of_transformers(spread: float, typical_p: float) -> None:
    """In a flat distribution more tokens are needed than are looked at first."""
    scores = torch.randn(6, 5000, generator=torch.Generator().manual_seed(1)) * spread

    filtered = keep_typical(scores, torch.full((6,), typical_p))

    assert torch.equal(filtered, TypicalLogitsWarper(typical_p)(NO_INPUT, scores))
    if spread == 0.01 and typical_p == 0.95:
        assert (filtered > -math.inf).sum(-1).min() > FIRST_CANDIDATES


def test_rows_of_one_are_left_alone_and_no_row_sees_another() -> None:
    scores = torch.randn(4, 900, generator=torch.Generator().manual_seed(2))
    typical_p = torch.tensor([1.0, 0.9, 0.2, 1.0])

    filtered = keep_typical(scores, typical_p)

    assert torch.equal(filtered[[0, 3]], scores[[0, 3]])
    for row in range(4):
        alone = keep_typical(scores[row : row + 1], typical_p[row : row + 1])
        assert torch.equal(alone[0], filtered[row])
