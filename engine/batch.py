"""What one forward pass computes, as tensors."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from baton.core.kv_layout import KvLayout
from baton.kernels.attention_plan import ArenaShape, AttentionPlan, plan_attention

OnLayer = Callable[[int], None]
"""Called in the middle of a pass, with a layer whose KV of all chunks is written, in order."""


def ignore_layer(layer: int) -> None:
    """Of a pass that nobody follows."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next tokens of one request."""

    tokens: Sequence[int]
    start: int
    """Tokens of the request that are in the cache already."""
    blocks: Sequence[int]
    """Its block table, covering at least `start + len(tokens)` tokens."""
    num_outputs: int
    """Of the last so many of `tokens` the hidden states are wanted: 1 to sample, 0 for nothing."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass: R requests, T new tokens end to end, S rows whose outputs are wanted."""

    tokens: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    block_tables: Tensor  # [R, max blocks] int64, padded with 0
    query_lens: tuple[int, ...]  # by request: new tokens in this pass
    context_lens: tuple[int, ...]  # by request: tokens in the cache after this pass
    output_rows: Tensor  # [S] int64 rows of T whose hidden states are wanted
    arena: ArenaShape
    _plan_by_window: dict[int | None, AttentionPlan] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def attention(self, window: int | None) -> AttentionPlan:
        """The plan of the layers that see `window` tokens, worked out when the first asks."""
        plan = self._plan_by_window.get(window)
        if plan is None:
            hides_nothing = window is not None and window >= max(self.context_lens)
            plan = self.attention(None) if hides_nothing else self._plan(window)
            self._plan_by_window[window] = plan
        return plan

    def _plan(self, window: int | None) -> AttentionPlan:
        return plan_attention(
            self.block_tables,
            self.query_lens,
            self.context_lens,
            self.positions,
            self.arena,
            window,
        )


def make_batch(
    chunks: Sequence[Chunk], layout: KvLayout, device: torch.device | str, *, dtype: str
) -> Batch:
    """Lay chunks end to end, to be computed in `dtype`.

    Raises ValueError if one is empty or longer than its blocks.
    """
    tokens, positions, tables, output_rows = array("q"), array("q"), array("q"), array("q")
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
        output_rows.extend(range(len(tokens) - chunk.num_outputs, len(tokens)))
    query_lens = tuple(len(chunk.tokens) for chunk in chunks)
    return Batch(
        tokens=_tensor(tokens, device),
        positions=_tensor(positions, device),
        block_tables=_tensor(tables, device).view(len(chunks), width),
        query_lens=query_lens,
        context_lens=context_lens,
        output_rows=_tensor(output_rows, device),
        arena=_arena_shape(layout, dtype),
    )


def _tensor(values: array[int], device: torch.device | str) -> Tensor:
    if not values:
        return torch.empty(0, dtype=torch.int64, device=device)
    return torch.frombuffer(values, dtype=torch.int64).to(device)


def _arena_shape(layout: KvLayout, dtype: str) -> ArenaShape:
    return ArenaShape(
        num_kv_heads=layout.num_kv_heads,
        block_size=layout.block_size,
        row_bytes=layout.unit_bytes // 2,
        dtype=getattr(torch, dtype),
    )
