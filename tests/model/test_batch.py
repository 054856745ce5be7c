"""Chunks laid end to end."""

from __future__ import annotations

import pytest
import torch

from baton.core.kv_layout import KvLayout
from baton.engine.batch import Batch, Chunk, make_batch

LAYOUT = KvLayout(
    model_fingerprint=b"",
    dtype="float32",
    num_layers=1,
    num_kv_heads=1,
    head_dim=2,
    block_size=4,
)


def batch_of(*chunks: Chunk) -> Batch:
    return make_batch(chunks, LAYOUT, "cpu", dtype="float32")


def test_tokens_lie_end_to_end_at_the_slots_of_their_blocks() -> None:
    batch = batch_of(
        Chunk(tokens=[7, 8, 9], start=3, blocks=[5, 2], num_outputs=1),
        Chunk(tokens=[4], start=8, blocks=[9, 1, 6], num_outputs=1),
    )

    assert batch.tokens.tolist() == [7, 8, 9, 4]
    assert batch.positions.tolist() == [3, 4, 5, 8]
    plan = batch.attention(None)
    assert (plan.blocks.tolist(), plan.offsets.tolist()) == ([5, 2, 2, 6], [3, 0, 1, 0])
    assert batch.block_tables.tolist() == [[5, 2, 0], [9, 1, 6]]
    assert (batch.query_lens, batch.context_lens) == ((3, 1), (6, 9))
    assert batch.output_rows.tolist() == [2, 3]
    assert batch.tokens.dtype is batch.positions.dtype is torch.int64


def test_only_wanted_rows_are_sampled() -> None:
    batch = batch_of(
        Chunk(tokens=[1, 2], start=0, blocks=[0], num_outputs=0),
        Chunk(tokens=[3], start=0, blocks=[1], num_outputs=1),
    )

    assert batch.output_rows.tolist() == [2]


def test_blocks_reserved_ahead_are_not_read() -> None:
    batch = batch_of(Chunk(tokens=[1], start=0, blocks=[3, 4, 5], num_outputs=0))

    assert batch.block_tables.tolist() == [[3]]
    assert batch.output_rows.tolist() == []


def test_a_plan_is_worked_out_once_for_each_window() -> None:
    batch = batch_of(Chunk(tokens=[1], start=8, blocks=[3, 4, 5], num_outputs=1))

    narrow, wide = batch.attention(2), batch.attention(None)

    assert batch.attention(2) is narrow and batch.attention(None) is wide
    narrow_rows, wide_rows = narrow.decodes[0].rows, wide.decodes[0].rows
    assert narrow_rows is not None and wide_rows is not None
    assert len(narrow_rows) < len(wide_rows)


def test_a_window_that_hides_nothing_yet_needs_no_plan_of_its_own() -> None:
    batch = batch_of(Chunk(tokens=[1], start=8, blocks=[3, 4, 5], num_outputs=1))

    assert batch.attention(9) is batch.attention(None)
    assert batch.attention(8) is not batch.attention(None)


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
