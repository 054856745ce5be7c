"""The best token: the first of the largest, in vocabularies of any size."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kernels.sampling.best_token import (
    CHUNK,
    MIN_VOCAB_SIZE,
    best_finite_on_host,
    best_finite_token,
    best_token,
    reference,
)
from baton.kernels.sampling.best_token_cpu import PART_LEN

SIZES = [1, 50, MIN_VOCAB_SIZE, MIN_VOCAB_SIZE + 1, MIN_VOCAB_SIZE + CHUNK - 1, 40_000]
SPLIT_SIZES = [1, 63, 64, 65, 130, PART_LEN + 1, 40_000, 5 * PART_LEN - 1]
"""Rows that end within, at and behind the steps of a loop, and that are cut into parts."""


def edges(vocab_size: int) -> list[int]:
    """First and last places of vectors, steps and parts, and of what is left of a row."""
    num_parts = -(-vocab_size // PART_LEN)
    part_len = -(-vocab_size // num_parts)
    starts = [0, 15, 16, 63, 64, 100, *range(part_len, vocab_size, part_len), vocab_size]
    return sorted(
        {place for start in starts for place in (start - 1, start)} & {*range(vocab_size)}
    )


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


@pytest.mark.parametrize("vocab_size", SPLIT_SIZES)
@pytest.mark.parametrize("num_rows", [1, 3, 9])
def test_the_best_token_is_found_wherever_it_is(vocab_size: int, num_rows: int) -> None:
    """Among scores so low that only infinity is below them."""
    for place in edges(vocab_size):
        scores = torch.full((num_rows, vocab_size), -3e38)
        scores[num_rows // 2, place] = -2e38

        tokens, are_finite = best_finite_token(scores)

        assert tokens[num_rows // 2] == place
        assert tokens.count_nonzero() <= 1
        assert are_finite.all()


@pytest.mark.parametrize("vocab_size", SPLIT_SIZES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_score_that_is_not_finite_is_seen_wherever_it_is(vocab_size: int, bad: float) -> None:
    for place in edges(vocab_size):
        scores = torch.zeros(3, vocab_size)
        scores[1, place] = bad

        assert best_finite_token(scores)[1].tolist() == [True, False, True], place


def test_all_parts_of_a_row_are_waited_for_however_many_threads_there_are() -> None:
    """Scores sink from call to call: what a part had before would be the best now."""
    num_parts = 60
    scores = torch.empty(1, num_parts * PART_LEN)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        for attempt in range(100):
            place = (attempt * 7 % num_parts) * PART_LEN + 1 + attempt
            scores.fill_(-attempt)
            scores[0, place] += 0.5

            assert best_token(scores).tolist() == [place]
    finally:
        torch.set_num_threads(before)


def test_as_numbers_they_are_the_same_however_many_there_were_before() -> None:
    generator = torch.Generator().manual_seed(0)
    for num_rows, vocab_size in ((1, 50), (9, 130), (2, 5 * PART_LEN - 1), (1, 50), (12, 4096)):
        scores = torch.randn(num_rows, vocab_size + 3, generator=generator)[:, :vocab_size]
        scores[-1, vocab_size // 2] = math.nan
        tokens, are_finite = best_finite_token(scores)

        on_host = best_finite_on_host(scores)

        assert on_host is None or on_host[1] == are_finite.tolist()
        assert on_host is None or on_host[0][:-1] == tokens.tolist()[:-1]
    assert best_finite_on_host(scores.double()) is None
