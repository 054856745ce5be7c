"""Norm, rotation and the write of latents by the operator of source/latent_write.cpp."""

from __future__ import annotations

from torch import Tensor

from baton.kernels.cache_write.rotation import LatentNorm, Rotation
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype, small_rows
from baton.kernels.paging.sequences import Sequences


def latent_write(  # noqa: PLR0913  # as the kernel
    q: Tensor,
    kv: Tensor,
    arena: Tensor,
    sequences: Sequences,
    norm: LatentNorm,
    rotation: Rotation,
    is_interleaved: bool,
) -> Tensor:
    if not arena.is_contiguous():
        raise ValueError("an arena on a CPU must be contiguous")
    tokens, heads, width = q.shape
    cos, sin = (part.contiguous() for part in rotation)
    half = cos.shape[1]
    q_rope = q.new_empty(tokens, heads, 2 * half)
    made = Call(
        of_dtype("latent_write", q.dtype),
        rows=tokens,
        inputs=(
            q.contiguous(),
            kv.contiguous(),
            arena,
            sequences.positions,
            sequences.query_starts,
            sequences.block_tables,
            norm.weight,
            cos,
            sin,
        ),
        outputs=(q_rope,),
        ints=(
            heads,
            width,
            len(norm.weight),
            half,
            sequences.block_size,
            sequences.block_tables.stride(0),
            int(is_interleaved),
        ),
        floats=(norm.eps,),
        alone_rows=small_rows(kv.nbytes // tokens + q_rope.nbytes // tokens),
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return q_rope
