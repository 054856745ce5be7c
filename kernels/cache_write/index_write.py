"""Rotates the queries and keys of the sparse-attention index (DeepSeek V3.2), and stores the keys.

    arena of one layer   [blocks][1][S][D]         one key per token, shared by all heads of the
    index

    q, k -> rope(q [.. :R]), q [.. R:]   and the same of k, which goes into the arena

Pair i of what rotates is (i, i + R/2), or (2i, 2i + 1) where positions are *interleaved*. Values
that are not finite are stored as NaN; kernels/latent_attention/choose_tokens.py ranks them last.

T new tokens, N heads of the index, D their width, R dimensions that rotate, S tokens a block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cache_write import index_write_cpu as cpu
from baton.kernels.cache_write.latent_write import rotate_pairs
from baton.kernels.cache_write.rotation import Rotation
from baton.kernels.cpu.operators import runs
from baton.kernels.paging.paged_rows import write_rows
from baton.kernels.paging.sequences import Sequences


def index_write(
    q: Tensor,
    k: Tensor,
    arena: Tensor,
    sequences: Sequences,
    *,
    rotation: Rotation,
    is_interleaved: bool,
) -> Tensor:
    """q [T, N, D] and k [T, D] -> q rotated, [T, N, D]."""
    width, rotated = k.shape[1], 2 * rotation[0].shape[1]
    if (
        q.shape[::2] != k.shape
        or width < rotated
        or arena.shape[1:] != (1, sequences.block_size, width)
    ):
        raise ValueError(
            f"shapes do not fit: {q.shape=} {k.shape=} {arena.shape=}, {rotated} dimensions that "
            f"rotate, blocks of {sequences.block_size}"
        )
    if runs(q, k, arena):
        return cpu.index_write(q, k, arena, sequences, rotation, is_interleaved)
    return reference(q, k, arena, sequences, rotation=rotation, is_interleaved=is_interleaved)


def reference(
    q: Tensor,
    k: Tensor,
    arena: Tensor,
    sequences: Sequences,
    *,
    rotation: Rotation,
    is_interleaved: bool,
) -> Tensor:
    """The reference; used on GPUs, and without compiled operators."""
    cos, sin = rotation
    rotated = 2 * cos.shape[1]
    first_of_keys = rotate_pairs(k[:, :rotated], cos, sin, is_interleaved)
    write_rows(torch.cat((first_of_keys, k[:, rotated:]), dim=-1), arena, sequences)
    angles = cos.unsqueeze(1), sin.unsqueeze(1)
    first = rotate_pairs(q[..., :rotated], *angles, is_interleaved)
    return torch.cat((first, q[..., rotated:]), dim=-1)
