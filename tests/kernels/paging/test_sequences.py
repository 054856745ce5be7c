"""What torch's attention works out from the sequences of a pass."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.passes import sequences_of

from baton.kernels.paging.attention_plan import ArenaShape

SHAPE = ArenaShape(num_kv_heads=1, block_size=4, row_bytes=1, dtype=torch.float32)


def test_a_plan_is_worked_out_once_for_each_window() -> None:
    sequences = sequences_of([[3, 4, 5]], [(1, 9)])

    narrow, wide = sequences.plan(2, SHAPE), sequences.plan(None, SHAPE)

    assert sequences.plan(2, SHAPE) is narrow and sequences.plan(None, SHAPE) is wide
    assert len(narrow.decodes[0].rows) < len(wide.decodes[0].rows)


def test_a_window_that_hides_nothing_yet_needs_no_plan_of_its_own() -> None:
    sequences = sequences_of([[3, 4, 5]], [(1, 9)])

    assert sequences.plan(9, SHAPE) is sequences.plan(None, SHAPE)
    assert sequences.plan(8, SHAPE) is not sequences.plan(None, SHAPE)


def test_some_requests_are_a_pass_of_their_own() -> None:
    sequences = sequences_of([[3, 4, 5], [0], [1, 2], [6]], [(1, 9), (2, 2), (3, 7), (1, 1)])

    part = sequences.part(1, 3)

    assert part.num_requests == 2
    assert part.positions.tolist() == [0, 1, 4, 5, 6]
    assert part.query_starts.tolist() == [0, 2, 5]
    assert part.context_lens.tolist() == [2, 7]
    assert part.block_tables[:, :2].tolist() == [[0, 0], [1, 2]]
    assert (part.max_query_len, part.max_context_len) == (3, 7)
    assert part.lengths() == [(2, 2), (3, 7)]


def test_a_request_may_be_read_from_an_arena_of_its_own() -> None:
    own = sequences_of([[3, 4, 5], [0]], [(2, 9), (1, 1)]).part(0, 1).with_own_blocks(3)

    assert own.block_tables.tolist() == [[0, 1, 2]]
    assert own.lengths() == [(2, 9)]
    with pytest.raises(ValueError, match="2 requests"):
        sequences_of([[3], [0]], [(1, 1), (1, 1)]).with_own_blocks(1)
