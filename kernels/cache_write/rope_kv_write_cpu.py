"""Head norms, rotation and the write of K and V by the operator of source/rope_kv_write.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cache_write.rotation import HeadNorm, Rotation
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype, small_rows
from baton.kernels.paging.arena_cpu import CpuArena
from baton.kernels.paging.quantized_arena import Arena
from baton.kernels.paging.sequences import Sequences


def rope_kv_write(
    qkv: Tensor,
    arena: Arena,
    sequences: Sequences,
    head_norm: HeadNorm | None,
    rotation: Rotation | None,
) -> Tensor:
    tokens, _, width = qkv.shape
    layout = CpuArena.of(arena)
    num_heads = qkv.shape[1] - 2 * layout.num_heads
    q = qkv.new_empty(tokens, num_heads, width)
    cos, sin = (None, None) if rotation is None else [part.contiguous() for part in rotation]
    norms = (None, None) if head_norm is None else (head_norm.q_weight, head_norm.k_weight)
    made = Call(
        of_dtype("rope_kv_write", qkv.dtype),
        rows=tokens,
        inputs=(
            qkv.contiguous(),
            layout.memory,
            sequences.positions,
            sequences.query_starts,
            sequences.block_tables,
            *norms,
            cos,
            sin,
        ),
        outputs=(q,),
        ints=(
            num_heads,
            layout.num_heads,
            width,
            layout.block_size,
            sequences.block_tables.stride(0),
            0 if cos is None else cos.shape[1],
            layout.items,
            layout.unit_bytes,
            norms[0] is not None and norms[0].dtype is torch.float32,
        ),
        floats=(0.0 if head_norm is None else head_norm.eps,),
        alone_rows=small_rows(qkv.nbytes // tokens),
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return q
