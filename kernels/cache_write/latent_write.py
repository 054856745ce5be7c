"""The fused step between the projections and latent attention: norm, rotation, cache write.

    latent = norm(kv[:L])          RMS norm over the compressed part    kernels/residual/rms_norm.py
    rotated = rope(kv[L:])          the part that rotates, one for all heads
    latent, rotated --> the arena   each token into its slot of its block       core/kv_layout.py
    q_rope = rope(q[P:])           the part of each query that rotates

Pair i of what rotates is (i, i + R/2), or (2i, 2i + 1) where rotary positions are *interleaved*, as
DeepSeek trains them. Scores do not depend on the order of dimensions, so none is moved. Values that
are not finite are stored as NaN, so that attention to them is NaN and the request fails.

T new tokens, N heads, P width of a query's part that does not rotate, R of the one that does, L of
the latent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cache_write import latent_write_cpu as cpu
from baton.kernels.cache_write.rotation import LatentNorm, Rotation
from baton.kernels.cpu.operators import runs
from baton.kernels.paging.paged_rows import owners_of, put_rows
from baton.kernels.paging.sequences import Sequences
from baton.kernels.residual.rms_norm import rms_norm


def latent_write(  # noqa: PLR0913  # two inputs, the cache, and what is done on the way
    q: Tensor,
    kv: Tensor,
    arena: Tensor,
    sequences: Sequences,
    *,
    norm: LatentNorm,
    rotation: Rotation,
    is_interleaved: bool,
) -> Tensor:
    """q [T, N, P + R] and kv [T, L + R] -> the rotated part of the queries, [T, N, R]."""
    latent, rotated = len(norm.weight), 2 * rotation[0].shape[1]
    if (
        kv.shape != (len(q), latent + rotated)
        or q.shape[2] < rotated
        or arena.shape[1:] != (1, sequences.block_size, latent + rotated)
    ):
        raise ValueError(
            f"shapes do not fit: {q.shape=} {kv.shape=} {arena.shape=}, a norm over {latent}, "
            f"{rotated} dimensions that rotate, blocks of {sequences.block_size}"
        )
    if q.is_cuda:
        from baton.kernels.cache_write import (
            latent_write_gpu as gpu,  # imports Triton, which CPUs do not need
        )

        return gpu.latent_write(
            q, kv, arena, sequences, norm=norm, rotation=rotation, is_interleaved=is_interleaved
        )
    if runs(q, kv, arena) and norm.weight.dtype is q.dtype:
        return cpu.latent_write(q, kv, arena, sequences, norm, rotation, is_interleaved)
    return reference(
        q, kv, arena, sequences, norm=norm, rotation=rotation, is_interleaved=is_interleaved
    )


def reference(  # noqa: PLR0913  # as above
    q: Tensor,
    kv: Tensor,
    arena: Tensor,
    sequences: Sequences,
    *,
    norm: LatentNorm,
    rotation: Rotation,
    is_interleaved: bool,
) -> Tensor:
    """The definition, composed of other kernels."""
    latent, rotated = torch.split(kv, [len(norm.weight), 2 * rotation[0].shape[1]], dim=-1)
    kept = rms_norm(latent.contiguous(), norm.weight, norm.eps)
    rows = torch.cat((kept, rotate_pairs(rotated, *rotation, is_interleaved)), dim=-1)
    owners, positions = owners_of(sequences, len(rows)), sequences.positions[: len(rows)]
    put_rows(rows, arena, owners, positions, sequences)
    cos, sin = (part.unsqueeze(1) for part in rotation)
    return rotate_pairs(q[..., -rotated.shape[1] :], cos, sin, is_interleaved)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor, is_interleaved: bool) -> Tensor:
    """x [..., R] by angles [..., R/2], in float32."""
    halves = (*x.shape[:-1], -1, 2) if is_interleaved else (*x.shape[:-1], 2, -1)
    pairs, axis = x.float().reshape(halves), -1 if is_interleaved else -2
    low, high = pairs.unbind(axis)
    rotated = torch.stack((low * cos - high * sin, high * cos + low * sin), dim=axis)
    return rotated.view(x.shape).to(x.dtype)
