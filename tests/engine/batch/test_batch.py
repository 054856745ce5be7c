"""Chunks laid end to end."""

from __future__ import annotations

import pytest
import torch

from baton.engine.batch.batch import Batch, Chunk, make_batch

BLOCK_SIZE = 4


def batch_of(*chunks: Chunk) -> Batch:
    return make_batch(chunks, BLOCK_SIZE, "cpu")


def test_tokens_lie_end_to_end_at_the_slots_of_their_blocks() -> None:
    batch = batch_of(
        Chunk(tokens=[7, 8, 9], start=3, blocks=[5, 2], num_outputs=1),
        Chunk(tokens=[4], start=8, blocks=[9, 1, 6], num_outputs=1),
    )

    assert batch.tokens.tolist() == [7, 8, 9, 4]
    assert batch.output_rows.tolist() == [2, 3]
    sequences = batch.sequences
    assert sequences.positions.tolist() == [3, 4, 5, 8]
    assert sequences.block_tables.tolist() == [[5, 2, 0], [9, 1, 6]]
    assert sequences.query_starts.tolist() == [0, 3, 4]
    assert sequences.context_lens.tolist() == [6, 9]
    assert (sequences.max_query_len, sequences.max_context_len) == (3, 9)
    assert batch.tokens.dtype is sequences.positions.dtype is torch.int64


def test_only_wanted_rows_are_sampled() -> None:
    batch = batch_of(
        Chunk(tokens=[1, 2], start=0, blocks=[0], num_outputs=0),
        Chunk(tokens=[3], start=0, blocks=[1], num_outputs=1),
    )

    assert batch.output_rows.tolist() == [2]


def test_blocks_reserved_ahead_are_not_read() -> None:
    batch = batch_of(Chunk(tokens=[1], start=0, blocks=[3, 4, 5], num_outputs=0))

    assert batch.sequences.block_tables.tolist() == [[3]]
    assert batch.output_rows.tolist() == []


@pytest.mark.parametrize(
    "chunk",
    [
        pytest.param(Chunk([1, 2], 3, [0], 1), id="too few blocks"),
        pytest.param(Chunk([], 3, [0], 1), id="no tokens"),
    ],
)
def test_chunks_that_cannot_be_computed_are_refused(chunk: Chunk) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        batch_of(chunk)


def test_lengths_are_known_without_asking_the_device() -> None:
    sequences = batch_of(Chunk([7, 8, 9], 3, [5, 2], 1), Chunk([4], 8, [9, 1, 6], 1)).sequences
    for there in (sequences.query_starts, sequences.context_lens):
        there.fill_(-1)

    assert sequences.lengths() == [(3, 6), (1, 9)]
    assert sequences.part(1, 2).last_token().lengths() == [(1, 9)]
    assert sequences.part(0, 1).with_own_blocks(2).lengths() == [(3, 6)]


def test_tensors_begin_where_kernels_are_compiled_for() -> None:
    batch = batch_of(Chunk([7], 2, [5], 1), Chunk([4, 1], 8, [9, 1, 6], 0))
    sequences = batch.sequences
    start = batch.tokens.data_ptr()

    for each in (
        *(batch.output_rows, sequences.positions, sequences.query_starts),
        *(sequences.context_lens, sequences.block_tables, sequences.open_slots),
    ):
        assert each is not None
        assert (each.data_ptr() - start) % 16 == 0
