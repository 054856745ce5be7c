"""Rotation and the write of index keys by the operator of source/index_write.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cache_write.rotation import Rotation
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype, small_rows
from baton.kernels.paging.sequences import Sequences


def index_write(
    q: Tensor,
    k: Tensor,
    arena: Tensor,
    sequences: Sequences,
    rotation: Rotation,
    is_interleaved: bool,
) -> Tensor:
    if not arena.is_contiguous():
        raise ValueError("an arena on a CPU must be contiguous")
    tokens, heads, width = q.shape
    cos, sin = (part.contiguous() for part in rotation)
    q = q.contiguous()
    turned = torch.empty_like(q)
    made = Call(
        of_dtype("index_write", q.dtype),
        rows=tokens,
        inputs=(
            q,
            k.contiguous(),
            arena,
            sequences.positions,
            sequences.query_starts,
            sequences.block_tables,
            cos,
            sin,
        ),
        outputs=(turned,),
        ints=(
            heads,
            width,
            cos.shape[1],
            sequences.block_size,
            sequences.block_tables.stride(0),
            int(is_interleaved),
        ),
        alone_rows=small_rows(2 * q.nbytes // tokens),
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return turned
