"""Compiled expansion of latents; see source/latent_attention/latent_expand.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from baton.kernels.cpu.operators import Call, call, of_dtype

if TYPE_CHECKING:
    from baton.kernels.latent_attention.latent_heads import LatentShape


def latent_expand(
    arena: Tensor, table: Tensor, keys: Tensor, values: Tensor, shape: LatentShape
) -> Tensor:
    """`keys` and `values` are the panels of each head. It cannot be taped, as a context has any
    length."""
    if not (arena.is_contiguous() and table.is_contiguous()):
        raise ValueError("an arena on a CPU, and the table of a request, must be contiguous")
    heads, size = len(keys), arena.shape[2]
    kv = arena.new_empty(len(table), heads, 2, size, shape.kv_dim)
    made = Call(
        of_dtype("latent_expand", arena.dtype),
        rows=len(table),
        inputs={
            "arena": arena,
            "table": table,
            "keys": keys,
            "values": values,
            "num_heads": heads,
            "nope_dim": shape.nope_dim,
            "rope_dim": shape.rope_dim,
            "value_dim": shape.value_dim,
            "latent_dim": shape.latent_dim,
            "block_size": size,
            "width": shape.kv_dim,
        },
        outputs={"kv": kv},
    )
    call(made)
    return kv
