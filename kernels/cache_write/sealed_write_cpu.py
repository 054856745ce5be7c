"""Writing and reading blocks that are sealed in 4 bits, by source/sealed_*.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from baton.kernels.attention.scoring import Scoring
from baton.kernels.cpu import operators
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype
from baton.kernels.paging.arena_cpu import MAX_WIDTH
from baton.kernels.paging.sealed_arena import SealedArena
from baton.kernels.paging.sequences import Sequences
from baton.kernels.paging.window import Window, as_number, num_first_of

if TYPE_CHECKING:
    from baton.kernels.cache_write.rope_kv_write import HeadNorm, Rotation

WIDE = 0
"""Of `Items`: what 8-bit items are told of."""


def runs(x: Tensor, arena: SealedArena) -> bool:
    """Whether operators take heads x [..., H] to or from such an arena."""
    return x.shape[-1] <= MAX_WIDTH and operators.runs(x, arena.open_rows)


def rope_kv_write(
    qkv: Tensor,
    arena: SealedArena,
    sequences: Sequences,
    head_norm: HeadNorm | None,
    rotation: Rotation | None,
) -> Tensor:
    tokens, _, width = qkv.shape
    kv_heads = arena.units.shape[1]
    num_heads = qkv.shape[1] - 2 * kv_heads
    q = qkv.new_empty(tokens, num_heads, width)
    cos, sin = (None, None) if rotation is None else [part.contiguous() for part in rotation]
    norms = (None, None) if head_norm is None else (head_norm.q_weight, head_norm.k_weight)
    made = Call(
        of_dtype("sealed_kv_write", qkv.dtype),
        rows=tokens,
        inputs=(
            qkv.contiguous(),
            arena.units,
            sequences.positions,
            sequences.query_starts,
            sequences.block_tables,
            *norms,
            cos,
            sin,
            arena.open_rows,
            arena.pass_rows,
            sequences.lanes,
        ),
        outputs=(q,),
        ints=(
            num_heads,
            kv_heads,
            width,
            arena.block_size,
            sequences.block_tables.stride(0),
            0 if cos is None else cos.shape[1],
            WIDE,
            arena.units.shape[2],
            norms[0] is not None and norms[0].dtype is torch.float32,
        ),
        floats=(0.0 if head_norm is None else head_norm.eps,),
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return q


def paged_attention(
    q: Tensor,
    arena: SealedArena,
    sequences: Sequences,
    window: Window,
    scoring: Scoring,
    sinks: Tensor | None,
) -> Tensor:
    tokens, num_heads, width = q.shape
    out = torch.empty_like(q)
    made = Call(
        of_dtype("sealed_attention", q.dtype),
        rows=tokens,
        inputs=(
            q.contiguous(),
            arena.units,
            sequences.query_starts,
            sequences.context_lens,
            sequences.block_tables,
            sinks,
            arena.pass_rows,
        ),
        outputs=(out,),
        ints=(
            num_heads,
            arena.units.shape[1],
            width,
            arena.block_size,
            sequences.block_tables.stride(0),
            as_number(window),
            WIDE,
            arena.units.shape[2],
            sinks is not None and sinks.dtype is torch.float32,
            num_first_of(window),
        ),
        floats=(scoring.scale_of(width), scoring.softcap or 0.0),
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return out
