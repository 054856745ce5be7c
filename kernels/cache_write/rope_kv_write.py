"""The fused step between the qkv product and attention: norm, rotation, KV write.

    q, k = norm(q), norm(k)    RMS norm over each head, in some models  kernels/residual/rms_norm.py
    q, k = rope(q), rope(k)      in most models                            kernels/positions/rope.py
    k, v --> the arena     each token into its place of its block  kernels/paging/quantized_arena.py
                                 or full blocks in 4 bits             kernels/paging/int4_arena.py

Values that are not finite are stored as NaN (in quantised KV as a NaN scale), so that attention to
them is NaN and the request fails. A request never reads another one's slots.

T new tokens, N query heads, K KV heads, H head width, R <= H the part of a head that rotates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cache_write.rotation import HeadNorm, Rotation
from baton.kernels.paging.int4_arena import AnyArena, Int4Arena
from baton.kernels.paging.paged_rows import nan_if_infinite
from baton.kernels.paging.quantized_arena import QuantizedArena
from baton.kernels.paging.sequences import Sequences
from baton.kernels.positions.rope import rope
from baton.kernels.residual.rms_norm import rms_norm


def reference(
    qkv: Tensor,
    arena: AnyArena,
    sequences: Sequences,
    head_norm: HeadNorm | None = None,
    rotation: Rotation | None = None,
) -> Tensor:
    """The definition, composed of other kernels: qkv [T, N + 2K, H] -> queries [T, N, H].

    The operation for an arena is chosen in kernels/attention/layer_kv.py.
    """
    kv_heads = (arena if isinstance(arena, Tensor) else arena.units).shape[1]
    q, k, v = torch.split(qkv, [qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if head_norm is not None:
        q = rms_norm(q, head_norm.q_weight, head_norm.eps)
        k = rms_norm(k, head_norm.k_weight, head_norm.eps)
    if rotation is not None:
        q, k = rope(q, k, *rotation)
    write_kv(k, v, arena, sequences)
    return q


def write_kv(k: Tensor, v: Tensor, arena: AnyArena, sequences: Sequences) -> None:
    """Write k and v [T, K, H] to the slots of the block tables."""
    kv = nan_if_infinite(torch.stack((k, v), dim=1))  # [T, 2, K, H]
    if isinstance(arena, Int4Arena):
        arena.write(kv, sequences)
        return
    starts = sequences.query_starts[: sequences.num_requests + 1]
    owners = torch.repeat_interleave(starts[1:] - starts[:-1])  # [T]
    positions = sequences.positions[: len(k)]
    blocks = sequences.block_tables[owners, positions // sequences.block_size]
    offsets = positions % sequences.block_size
    if isinstance(arena, QuantizedArena):
        arena.write(blocks, offsets, kv)
    else:
        arena.permute(0, 3, 2, 1, 4)[blocks, offsets] = kv
