"""Compiled head norms, rotation and writing of K and V; see
source/cache_write/rope_kv_write.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cache_write.rotation import HeadNorm, Rotation
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype, small_rows
from baton.kernels.paging.arena_cpu import CpuArena
from baton.kernels.paging.sequences import Sequences


def rope_kv_write(
    qkv: Tensor,
    arena: CpuArena,
    sequences: Sequences,
    head_norm: HeadNorm | None,
    rotation: Rotation | None,
) -> Tensor:
    tokens, _, width = qkv.shape
    num_heads = qkv.shape[1] - 2 * arena.num_heads
    q = qkv.new_empty(tokens, num_heads, width)
    cos, sin = (None, None) if rotation is None else [part.contiguous() for part in rotation]
    q_norm, k_norm = (None, None) if head_norm is None else (head_norm.q_weight, head_norm.k_weight)
    made = Call(
        of_dtype("rope_kv_write", qkv.dtype),
        rows=tokens,
        inputs={
            "qkv": qkv.contiguous(),
            "arena": arena.memory,
            "positions": sequences.positions,
            "query_starts": sequences.query_starts,
            "block_tables": sequences.block_tables,
            "q_norm": q_norm,
            "k_norm": k_norm,
            "cos": cos,
            "sin": sin,
            "num_heads": num_heads,
            "num_kv_heads": arena.num_heads,
            "width": width,
            "block_size": arena.block_size,
            "table_stride": sequences.block_tables.stride(0),
            "half": 0 if cos is None else cos.shape[1],
            "items": arena.items,
            "unit_bytes": arena.unit_bytes,
            "has_float_norms": q_norm is not None and q_norm.dtype is torch.float32,
            "eps": 0.0 if head_norm is None else head_norm.eps,
        },
        outputs={"q": q},
        alone_rows=small_rows(qkv.nbytes // tokens),
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return q
