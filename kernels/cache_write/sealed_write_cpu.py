"""Blocks sealed in 4 bits on their way into the cache, by source/sealed_kv_write.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cache_write.rotation import HeadNorm, Rotation
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype
from baton.kernels.paging.sealed_arena import SealedArena
from baton.kernels.paging.sealed_arena_cpu import WIDE
from baton.kernels.paging.sequences import Sequences


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
