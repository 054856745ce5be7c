"""Compiled rotation and writing of index keys; see source/cache_write/index_write.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cache_write.rotation import Rotation
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype, small_rows
from baton.kernels.paging.paged_rows_cpu import places_of
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
    rotated = torch.empty_like(q)
    made = Call(
        of_dtype("index_write", q.dtype),
        rows=tokens,
        inputs={
            "q": q,
            "k": k.contiguous(),
            "arena": arena,
            "cos": cos,
            "sin": sin,
            "num_heads": heads,
            "width": width,
            "half": cos.shape[1],
            "is_interleaved": is_interleaved,
            **places_of(sequences),
        },
        outputs={"rotated": rotated},
        alone_rows=small_rows(2 * q.nbytes // tokens),
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return rotated
