"""The best token: the first of the largest, in vocabularies of any size."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kernels.best_token import CHUNK, MIN_VOCAB_SIZE, best_token, reference

SIZES = [1, 50, MIN_VOCAB_SIZE, MIN_VOCAB_SIZE + 1, MIN_VOCAB_SIZE + CHUNK - 1, 40_000]


@pytest.mark.parametrize("vocab_size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_best_token_is_the_first_of_the_largest(vocab_size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    many_ties = torch.randint(0, 4, (7, vocab_size), generator=generator).to(dtype)
    few_ties = torch.randn(7, vocab_size, generator=generator).to(dtype)

    for scores in (many_ties, few_ties):
        assert best_token(scores).tolist() == [reference(row) for row in scores.tolist()]


@given(st.data())
@settings(deadline=None)
def test_ties_across_chunks_go_to_the_lowest_token(data: st.DataObject) -> None:
    vocab_size = MIN_VOCAB_SIZE + data.draw(st.integers(0, 2 * CHUNK))
    places = data.draw(st.sets(st.integers(0, vocab_size - 1), min_size=1, max_size=5))
    scores = torch.full((1, vocab_size), -math.inf)
    scores[0, list(places)] = data.draw(st.sampled_from([-3.0, 0.0, math.inf]))

    assert best_token(scores).tolist() == [min(places)]


@pytest.mark.parametrize("vocab_size", SIZES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_gone_bad_still_gives_a_token_and_disturbs_no_other(
    vocab_size: int, bad: float
) -> None:
    good = torch.arange(vocab_size).float().neg().roll(vocab_size // 2)
    scores = torch.stack((torch.full_like(good, bad), good))
    scores[0, 0] = 1.0

    spoilt, best = best_token(scores).tolist()

    assert 0 <= spoilt < vocab_size
    assert best == vocab_size // 2 if vocab_size > 1 else best == 0


def test_a_slice_of_a_larger_tensor_will_do() -> None:
    scores = torch.randn(3, 2 * MIN_VOCAB_SIZE)

    assert torch.equal(
        best_token(scores[:, 1 : MIN_VOCAB_SIZE + 99]),
        scores[:, 1 : MIN_VOCAB_SIZE + 99].argmax(-1),
    )
