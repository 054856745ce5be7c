"""Compiled writing of K and V into int4 blocks; see source/cache_write/int4_kv_write.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cache_write.rotation import HeadNorm, Rotation
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype
from baton.kernels.paging.arena_cpu import WIDE
from baton.kernels.paging.int4_arena import Int4Arena
from baton.kernels.paging.sequences import Sequences


def rope_kv_write(
    qkv: Tensor,
    arena: Int4Arena,
    sequences: Sequences,
    head_norm: HeadNorm | None,
    rotation: Rotation | None,
) -> Tensor:
    tokens, _, width = qkv.shape
    arena.check(tokens, sequences)
    kv_heads = arena.units.shape[1]
    num_heads = qkv.shape[1] - 2 * kv_heads
    q = qkv.new_empty(tokens, num_heads, width)
    cos, sin = (None, None) if rotation is None else [part.contiguous() for part in rotation]
    q_norm, k_norm = (None, None) if head_norm is None else (head_norm.q_weight, head_norm.k_weight)
    made = Call(
        of_dtype("int4_kv_write", qkv.dtype),
        rows=tokens,
        inputs={
            "qkv": qkv.contiguous(),
            "arena": arena.units,
            "positions": sequences.positions,
            "query_starts": sequences.query_starts,
            "block_tables": sequences.block_tables,
            "q_norm": q_norm,
            "k_norm": k_norm,
            "cos": cos,
            "sin": sin,
            "open_rows": arena.open_rows,
            "pass_rows": arena.pass_rows,
            "open_slots": sequences.open_slots,
            "num_open": arena.num_open,
            "num_heads": num_heads,
            "num_kv_heads": kv_heads,
            "width": width,
            "block_size": arena.block_size,
            "table_stride": sequences.block_tables.stride(0),
            "half": 0 if cos is None else cos.shape[1],
            "items": WIDE,
            "unit_bytes": arena.units.shape[2],
            "has_float_norms": q_norm is not None and q_norm.dtype is torch.float32,
            "eps": 0.0 if head_norm is None else head_norm.eps,
        },
        outputs={"q": q},
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return q
