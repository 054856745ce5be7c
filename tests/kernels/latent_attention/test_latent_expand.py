"""Keys and values made from latents: of the operator, and of torch, as defined."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton.kernels.cpu.operators import runs
from baton.kernels.latent_attention import latent_expand as kernel
from baton.kernels.latent_attention.latent_heads import LatentShape, LatentWeights

compiled = pytest.mark.skipif(not runs(torch.zeros(1)), reason="there is no C++ compiler")
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
SHAPES = [
    LatentShape(num_heads=3, nope_dim=10, rope_dim=6, value_dim=12, latent_dim=24),
    LatentShape(num_heads=2, nope_dim=4, rope_dim=2, value_dim=70, latent_dim=16),
    LatentShape(num_heads=5, nope_dim=64, rope_dim=32, value_dim=64, latent_dim=128),
]
TABLE = [4, 1, 5]


def made(shape: LatentShape, block_size: int, dtype: torch.dtype) -> tuple[Tensor, LatentWeights]:
    generator = torch.Generator().manual_seed(block_size)
    rows = shape.num_heads * (shape.nope_dim + shape.value_dim)
    arena = torch.randn(6, 1, block_size, shape.cached_dim, generator=generator).to(dtype)
    weight = torch.randn(rows, shape.latent_dim, generator=generator).to(dtype)
    return arena, LatentWeights.of(weight, shape)


@compiled
@each_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=["small", "long values", "whole panels"])
@pytest.mark.parametrize("block_size", [1, 4, 16, 19])
def test_it_is_as_defined(shape: LatentShape, block_size: int, dtype: torch.dtype) -> None:
    arena, weights = made(shape, block_size, dtype)
    table, heads = torch.tensor(TABLE), weights.of_heads(0, shape.num_heads)

    kv = kernel.latent_expand(arena, table, *heads, shape)

    # The products of both are by the same operator's rows: equal to the bit.
    assert torch.equal(kv, kernel.reference(arena, table, *heads, shape))
    assert kv.shape == (3, shape.num_heads, 2, block_size, shape.kv_dim)


@each_dtype
def test_some_heads_are_made_as_all_are(dtype: torch.dtype) -> None:
    shape = SHAPES[0]
    arena, weights = made(shape, 4, dtype)
    table = torch.tensor(TABLE)
    whole = kernel.latent_expand(arena, table, *weights.of_heads(0, 3), shape)

    part = kernel.latent_expand(arena, table, *weights.of_heads(1, 2), shape)

    assert torch.equal(part, whole[:, 1:2])


def test_what_turns_is_that_of_the_cache_for_all_heads() -> None:
    shape = SHAPES[0]
    arena, weights = made(shape, 4, torch.float32)

    kv = kernel.latent_expand(arena, torch.tensor([2]), *weights.of_heads(0, 3), shape)

    for head in range(3):
        assert torch.equal(kv[0, head, 0, :, 10:16], arena[2, 0, :, 24:])
    assert not kv[:, :, 1, :, 12:].any()  # values are as wide as keys
