"""Computes keys and values of heads from the latents of one request, as a temporary KV cache.

    latents      blocks table[0] .. table[M - 1] of an arena [blocks][1][S][L + R]
    kv           [M][N][2][S][H]      (U_k[n] latent, rotated), zeros;  U_v[n] latent, zeros

H is the larger width of the two, so that attention reads it like the KV of any other model. Letters
as in kernels/latent_attention/latent_heads.py; S tokens a block, M blocks.
"""

from __future__ import annotations

from torch import Tensor

from baton.kernels.cpu.operators import runs
from baton.kernels.latent_attention import latent_expand_cpu as cpu
from baton.kernels.latent_attention.latent_heads import LatentShape
from baton.kernels.products.head_linear import HeadWeight, PackedHeads, head_linear


def latent_expand(
    arena: Tensor, table: Tensor, keys: HeadWeight, values: HeadWeight, shape: LatentShape
) -> Tensor:
    """`keys` U_k [n, P, L] and `values` U_v [n, V, L] of some heads -> [M, n, 2, S, H]"""
    if isinstance(keys, PackedHeads) and isinstance(values, PackedHeads) and runs(arena):
        return cpu.latent_expand(arena, table, keys.panels, values.panels, shape)
    return reference(arena, table, keys, values, shape)


def reference(
    arena: Tensor, table: Tensor, keys: HeadWeight, values: HeadWeight, shape: LatentShape
) -> Tensor:
    num_heads, size = keys.shape[0], arena.shape[2]
    past = arena.index_select(0, table).view(len(table) * size, 1, -1)  # [M S, 1, L + R]
    latents = past[..., : shape.latent_dim].expand(-1, num_heads, -1)
    kv = past.new_zeros(len(table), num_heads, 2, size, shape.kv_dim)
    by_token = kv.permute(2, 0, 3, 1, 4)  # [2, M, S, n, H]
    room = by_token.shape[1:4]
    by_token[0, ..., : shape.nope_dim] = head_linear(latents, keys).view(*room, -1)
    rotated = past[..., shape.latent_dim :].view(*room[:2], 1, -1)
    by_token[0, ..., shape.nope_dim : shape.query_dim] = rotated
    by_token[1, ..., : shape.value_dim] = head_linear(latents, values).view(*room, -1)
    return kv
