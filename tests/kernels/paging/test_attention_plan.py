"""What a plan reads: groups of like length, and of the past only what a window reaches."""

from __future__ import annotations

import pytest
import torch

from baton.kernels.paging import attention_plan
from baton.kernels.paging.attention_plan import ArenaShape, AttentionPlan, plan_attention

SHAPE = ArenaShape(num_kv_heads=1, block_size=4, row_bytes=1, dtype=torch.float32)


def plan(query_len: int, context_lens: list[int], window: int | None = None) -> AttentionPlan:
    """Requests of `query_len` new tokens each; their blocks are 0, 1, ..., in order."""
    num_blocks = [SHAPE.num_blocks_for(context_len) for context_len in context_lens]
    tables = torch.zeros(len(context_lens), max(num_blocks), dtype=torch.int64)
    first = 0
    for table, count in zip(tables, num_blocks, strict=True):
        table[:count] = torch.arange(first, first + count)
        first += count
    return plan_attention(tables, [query_len] * len(context_lens), context_lens, SHAPE, window)


def blocks_read(plan: AttentionPlan) -> list[list[int]]:
    """Of each group; a block's K is row 2b."""
    groups = [*plan.decodes, *plan.prefills]
    return [(g.rows[: len(g.rows) // 2] // 2).tolist() for g in groups]


def members(plan: AttentionPlan) -> list[list[int]]:
    tokens = torch.arange(100)
    return [tokens[group.tokens].tolist() for group in plan.decodes]


def test_a_decode_reads_only_the_blocks_within_its_window() -> None:
    assert blocks_read(plan(1, [40])) == [list(range(10))]
    assert blocks_read(plan(1, [40], window=4)) == [[9]]
    assert blocks_read(plan(1, [40], window=5)) == [[8, 9]]
    assert blocks_read(plan(1, [41], window=5)) == [[9, 10]]
    assert blocks_read(plan(1, [41], window=6)) == [[8, 9, 10]]
    assert blocks_read(plan(1, [41], window=41)) == [list(range(11))]


def test_requests_of_a_group_read_each_their_own_window() -> None:
    (read,) = blocks_read(plan(1, [40, 8], window=5))

    assert read == [8, 9, 10, 11]


def test_a_later_chunk_reads_its_window_before_it_and_itself() -> None:
    (read,) = blocks_read(plan(3, [40], window=6))

    assert read == [8, 9]


def test_a_whole_prompt_within_its_window_needs_no_mask() -> None:
    (group,) = plan(8, [8], window=8).prefills

    assert group.bias is None
    assert blocks_read(plan(8, [8], window=7)) == [[0, 1]]


def test_a_long_prompt_with_a_window_is_cut_into_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_plan, "MIN_WINDOW_CUT", 4)

    assert blocks_read(plan(24, [24], window=8)) == [[0, 1], [0, 1, 2, 3], [2, 3, 4, 5]]


def test_no_mask_is_larger_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_plan, "MASK_ITEMS", 200)
    monkeypatch.setattr(attention_plan, "MIN_WINDOW_CUT", 4)

    for window in (None, 3, 30):
        for group in plan(60, [80], window).prefills:
            assert group.bias is not None
            # A mask is as wide as whole blocks are.
            assert group.bias.shape[0] * (group.bias.shape[1] - 2 * SHAPE.block_size) <= 200


def test_groups_hold_requests_of_like_length_within_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_plan, "GATHER_BYTES", 40)

    assert members(plan(1, [40, 12, 120, 12, 36])) == [[2], [0, 4], [1, 3]]


def test_windows_make_requests_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_plan, "GATHER_BYTES", 40)

    assert members(plan(1, [40, 12, 120, 12, 36], window=12)) == [[0, 1, 2, 3, 4]]
