"""Compiled norm, rotation and writing of latents; see source/cache_write/latent_write.cpp."""

from __future__ import annotations

from torch import Tensor

from baton.kernels.cache_write.rotation import LatentNorm, Rotation
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype, small_rows
from baton.kernels.paging.paged_rows_cpu import places_of
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
        inputs={
            "q": q.contiguous(),
            "kv": kv.contiguous(),
            "arena": arena,
            "norm_weight": norm.weight,
            "cos": cos,
            "sin": sin,
            "num_heads": heads,
            "width": width,
            "latent_dim": len(norm.weight),
            "half": half,
            "is_interleaved": is_interleaved,
            "eps": norm.eps,
            **places_of(sequences),
        },
        outputs={"q_rope": q_rope},
        alone_rows=small_rows(kv.nbytes // tokens + q_rope.nbytes // tokens),
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return q_rope
