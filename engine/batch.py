"""What one forward pass computes, as tensors."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.core.kv_layout import KvLayout
from baton.kernels.paged_attention import ArenaShape, AttentionPlan, plan_attention


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next tokens of one request."""

    tokens: Sequence[int]
    start: int
    """Tokens of the request that are in the cache already."""
    blocks: Sequence[int]
    """Its block table, covering at least `start + len(tokens)` tokens."""
    wants_logits: bool
    """Of the last of `tokens`."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass: R requests, T new tokens end to end, S rows whose logits are wanted."""

    tokens: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slots: Tensor  # [T] int64, block * block_size + offset where each token's KV is written
    block_tables: Tensor  # [R, max blocks] int64, padded with 0
    query_lens: tuple[int, ...]  # by request: new tokens in this pass
    context_lens: tuple[int, ...]  # by request: tokens in the cache after this pass
    sample_rows: Tensor  # [S] int64 rows of T whose logits are wanted
    attention: AttentionPlan


def make_batch(chunks: Sequence[Chunk], layout: KvLayout, device: torch.device | str) -> Batch:
    """Lay chunks end to end. Raises ValueError if one is empty or longer than its blocks."""
    tokens, positions, tables, sample_rows = array("q"), array("q"), array("q"), array("q")
    context_lens = tuple(chunk.start + len(chunk.tokens) for chunk in chunks)
    width = layout.num_blocks_for(max(context_lens))
    for chunk, context_len in zip(chunks, context_lens, strict=True):
        num_blocks = layout.num_blocks_for(context_len)
        if not chunk.tokens or len(chunk.blocks) < num_blocks:
            raise ValueError(
                f"a chunk of {len(chunk.tokens)} tokens after {chunk.start} does not fit into "
                f"{len(chunk.blocks)} blocks of {layout.block_size}"
            )
        tokens.extend(chunk.tokens)
        positions.extend(range(chunk.start, context_len))
        tables.extend(chunk.blocks[:num_blocks])
        tables.extend(bytes(width - num_blocks))
        if chunk.wants_logits:
            sample_rows.append(len(tokens) - 1)
    query_lens = tuple(len(chunk.tokens) for chunk in chunks)
    position_rows = _tensor(positions, device)
    block_tables = _tensor(tables, device).view(len(chunks), width)
    plan = plan_attention(
        block_tables, query_lens, context_lens, position_rows, _arena_shape(layout)
    )
    return Batch(
        tokens=_tensor(tokens, device),
        positions=position_rows,
        slots=plan.blocks * layout.block_size + plan.offsets,
        block_tables=block_tables,
        query_lens=query_lens,
        context_lens=context_lens,
        sample_rows=_tensor(sample_rows, device),
        attention=plan,
    )


def _tensor(values: array[int], device: torch.device | str) -> Tensor:
    if not values:
        return torch.empty(0, dtype=torch.int64, device=device)
    return torch.frombuffer(values, dtype=torch.int64).to(device)


def _arena_shape(layout: KvLayout) -> ArenaShape:
    return ArenaShape(
        num_kv_heads=layout.num_kv_heads,
        block_size=layout.block_size,
        row_bytes=layout.unit_bytes // 2,
        dtype=getattr(torch, layout.dtype),
    )
