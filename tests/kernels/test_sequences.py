"""What torch's attention works out from the sequences of a pass."""

from __future__ import annotations

import torch
from tests.kernels.passes import sequences_of

from baton.kernels.attention_plan import ArenaShape

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
