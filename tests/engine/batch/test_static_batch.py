"""Passes written over each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from baton.engine.batch.batch import Batch, Chunk, make_batch
from baton.engine.batch.decoding import Decoding
from baton.engine.batch.static_batch import PassLimits, StaticBatch

BLOCK_SIZE = 4
MIXED = (
    Chunk(tokens=[7, 8, 9], start=3, blocks=[5, 2], num_outputs=2),
    Chunk(tokens=[4], start=8, blocks=[9, 1, 6], num_outputs=1),
    Chunk(tokens=[1, 2], start=0, blocks=[3, 8], num_outputs=0),
)
DECODING = (Chunk(tokens=[5], start=6, blocks=[5, 2], num_outputs=1),)


def make_static_batch(**limits: Any) -> StaticBatch:
    return StaticBatch(replace(PassLimits(max_tokens=8, max_requests=3), **limits), BLOCK_SIZE)


def test_a_pass_is_what_a_batch_made_for_it_would_be() -> None:
    static = make_static_batch()

    for chunks in (MIXED, DECODING, MIXED):
        assert_is_as_made_for(static.fill(chunks), chunks)


def assert_is_as_made_for(batch: Batch, chunks: Sequence[Chunk]) -> None:
    expected = make_batch(chunks, BLOCK_SIZE, "cpu")
    assert batch.tokens.tolist() == expected.tokens.tolist()
    assert batch.output_rows.tolist() == expected.output_rows.tolist()
    ours, theirs = batch.sequences, expected.sequences
    assert ours.positions.tolist() == theirs.positions.tolist()
    assert ours.query_starts.tolist() == theirs.query_starts.tolist()
    assert ours.context_lens.tolist() == theirs.context_lens.tolist()
    assert ours.max_query_len == theirs.max_query_len
    width = ours.block_tables.shape[1]
    assert theirs.max_context_len <= ours.max_context_len <= BLOCK_SIZE * width
    assert ours.block_tables.shape == theirs.block_tables.shape
    for table, chunk in zip(ours.block_tables.tolist(), chunks, strict=True):
        num_blocks = -(-(chunk.start + len(chunk.tokens)) // BLOCK_SIZE)
        assert table[:num_blocks] == list(chunk.blocks[:num_blocks])


def test_every_pass_lies_where_the_last_one_lay() -> None:
    static = make_static_batch()
    first, second = static.fill(MIXED), static.fill(DECODING)

    assert first.tokens.data_ptr() == second.tokens.data_ptr()
    assert first.output_rows.data_ptr() == second.output_rows.data_ptr()
    for name in ("positions", "query_starts", "context_lens", "block_tables"):
        one, other = getattr(first.sequences, name), getattr(second.sequences, name)
        assert one.data_ptr() == other.data_ptr()
    assert first.sequences.block_tables.stride() == second.sequences.block_tables.stride()


@pytest.mark.parametrize(
    "limits", [{"max_tokens": 5}, {"max_requests": 2}, {"max_blocks": 2}], ids=str
)
def test_a_pass_that_does_not_fit_is_refused(limits: dict[str, int]) -> None:
    static = make_static_batch(**limits)

    assert not static.fits(MIXED)
    with pytest.raises(ValueError, match="larger than"):
        static.fill(MIXED)
    assert static.fits(DECODING)


@pytest.mark.parametrize(
    "chunk",
    [
        pytest.param(Chunk([1, 2], 3, [0], 1), id="too few blocks"),
        pytest.param(Chunk([], 3, [0], 1), id="no tokens"),
    ],
)
def test_chunks_that_cannot_be_computed_are_refused(chunk: Chunk) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        make_static_batch().fill([chunk])


def test_the_turns_of_a_decoding_are_what_batches_made_for_them_would_be() -> None:
    static = make_static_batch()
    tables = [[7], [3, 8], [1]]
    decoding = Decoding(tokens=[1, 2, 3], positions=[1, 6, 3], tables=tables, open_slots=[4, 0, 2])

    for turn in range(14):
        grown = [row for row, first in enumerate((1, 6, 3)) if turn and (first + turn) % 4 == 0]
        for row in grown:
            tables[row].append(10 * turn + row)
        if turn:
            decoding.next_turn([turn, 2 * turn, 3 * turn], grown)
        if turn in (6, 9):  # somebody else's pass, of which nothing may stay
            static.fill(MIXED)
        if turn != 9:
            assert static.fits(decoding)
            assert_is_as_made_for(static.fill(decoding), decoding)


def test_tokens_that_only_the_device_knows_are_never_asked_for() -> None:
    class Drawn(Decoding):
        @property
        def tokens(self) -> Sequence[int]:
            assert self.drawn is None, "asked for"
            return super().tokens

    static = make_static_batch()
    tables = [[7], [3, 8]]
    decoding = Drawn(tokens=[1, 2], positions=[2, 6], tables=tables, open_slots=[0, 1])
    static.fill(decoding)

    for turn in range(1, 8):
        grown = [row for row, first in enumerate((2, 6)) if (first + turn) % 4 == 0]
        for row in grown:
            tables[row].append(10 * turn + row)
        decoding.next_turn(torch.tensor([turn, 5 * turn]), grown)
        assert static.fits(decoding)
        batch = static.fill(decoding)

        known = Decoding([turn, 5 * turn], [2 + turn, 6 + turn], tables, [0, 1])
        assert_is_as_made_for(batch, known)


def test_a_decoding_that_outgrows_its_place_does_not_fit_any_more() -> None:
    static = make_static_batch(max_blocks=1)
    tables = [[7]]
    decoding = Decoding(tokens=[1], positions=[3], tables=tables, open_slots=[0])
    static.fill(decoding)

    tables[0].append(2)
    decoding.next_turn([1], [0])

    assert not static.fits(decoding)
    decoding.next_turn([1], [])
    assert not static.fits(decoding)
