"""Norms, rotation and the write into the arena, compiled, against the kernels they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.passes import empty_arena, sequences_of
from torch import Tensor

from baton.kernels.attention.layer_kv import LayerKv
from baton.kernels.cache_write import rope_kv_write as kernel
from baton.kernels.cache_write.rotation import HeadNorm, Rotation
from baton.kernels.cpu.operators import runs
from baton.kernels.paging.quantized_arena import Arena, QuantizedArena
from baton.kernels.paging.sequences import Sequences

REQUESTS = [(1, 5), (6, 6), (3, 17), (1, 1)]

compiled = pytest.mark.skipif(not runs(torch.zeros(1)), reason="there is no C++ compiler")
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
each_items = pytest.mark.parametrize(
    "items", [None, torch.int8, torch.float8_e4m3fn], ids=["wide", "int8", "fp8"]
)


@dataclass(frozen=True)
class Shape:
    heads: int = 4
    kv_heads: int = 2
    width: int = 16
    rotary: int = 16
    """0: nothing rotates."""
    block_size: int = 4
    has_norm: bool = True
    is_norm_wide: bool = False

    def head_norm(self, dtype: torch.dtype) -> HeadNorm | None:
        weights = 1 + 0.1 * torch.randn(2, self.width)
        q_weight, k_weight = weights if self.is_norm_wide else weights.to(dtype)
        return HeadNorm(q_weight, k_weight, 1e-6) if self.has_norm else None

    def rotation(self, num_tokens: int) -> Rotation | None:
        angles = torch.rand(num_tokens, self.rotary // 2) * 7
        return (angles.cos(), angles.sin()) if self.rotary else None


def random_pass(
    shape: Shape, requests: Sequence[tuple[int, int]], dtype: torch.dtype
) -> tuple[Tensor, Sequences]:
    num_blocks = [-(-c // shape.block_size) for _, c in requests]
    tables = torch.split(torch.randperm(sum(num_blocks)), num_blocks)
    num_tokens = sum(n for n, _ in requests)
    qkv = torch.randn(num_tokens, shape.heads + 2 * shape.kv_heads, shape.width).to(dtype)
    sequences = sequences_of([t.tolist() for t in tables], requests, block_size=shape.block_size)
    return qkv, sequences


def bytes_of(arena: Arena) -> Tensor:
    return (arena.units if isinstance(arena, QuantizedArena) else arena).view(torch.uint8)


def as_floats(arena: Arena) -> Tensor:
    if not isinstance(arena, QuantizedArena):
        return arena.float()
    return arena.gather(torch.arange(arena.units[..., 0].numel()), torch.float32)


def written(
    shape: Shape,
    requests: Sequence[tuple[int, int]],
    dtype: torch.dtype,
    items: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Arena, Arena]:
    """Queries and arena, by the operator and by the definition."""
    torch.manual_seed(11)
    qkv, sequences = random_pass(shape, requests, dtype)
    norm, rotation = shape.head_norm(dtype), shape.rotation(len(qkv))
    num_blocks = sum(-(-c // shape.block_size) for _, c in requests)
    arenas = [
        empty_arena(num_blocks, shape.kv_heads, shape.block_size, shape.width, items or dtype)
        for _ in range(2)
    ]
    out = LayerKv.of(arenas[0], dtype).write(qkv, sequences, head_norm=norm, rotation=rotation)
    expected = kernel.reference(qkv, arenas[1], sequences, head_norm=norm, rotation=rotation)
    return out, expected, arenas[0], arenas[1]


SHAPES = [
    pytest.param(Shape(), id="all steps"),
    pytest.param(Shape(width=128, rotary=128, block_size=16), id="usual widths"),
    pytest.param(Shape(width=100, rotary=50), id="odd widths, a part rotates"),
    pytest.param(Shape(rotary=0), id="no rotation"),
    pytest.param(Shape(has_norm=False), id="no norm"),
    pytest.param(Shape(rotary=0, has_norm=False), id="nothing but the write"),
    pytest.param(Shape(is_norm_wide=True), id="norm wider than the heads"),
    pytest.param(Shape(heads=3, kv_heads=1, width=5, rotary=2, block_size=3), id="tiny"),
]


@compiled
@pytest.mark.parametrize("shape", SHAPES)
@each_dtype
def test_queries_keys_and_values_are_as_defined(shape: Shape, dtype: torch.dtype) -> None:
    out, expected, arena, expected_arena = written(shape, REQUESTS, dtype)

    rtol, atol = (1e-5, 1e-6) if dtype is torch.float32 else (2**-6, 2**-7)
    torch.testing.assert_close(out, expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(as_floats(arena), as_floats(expected_arena), rtol=rtol, atol=atol)


@compiled
@pytest.mark.parametrize("width", [8, 100, 128])
@each_dtype
@each_items
def test_what_is_only_stored_is_stored_to_the_bit(
    items: torch.dtype | None, dtype: torch.dtype, width: int
) -> None:
    shape = Shape(width=width, rotary=0, has_norm=False)

    out, expected, arena, expected_arena = written(shape, REQUESTS, dtype, items)

    assert torch.equal(out, expected)
    assert torch.equal(bytes_of(arena), bytes_of(expected_arena))


@compiled
@each_items
def test_numbers_of_all_sizes_are_stored_as_defined_and_what_is_not_finite_as_nan(
    items: torch.dtype | None,
) -> None:
    shape = Shape(rotary=0, has_norm=False, heads=1, kv_heads=1, width=64)
    qkv, sequences = random_pass(shape, [(16, 16)], torch.float32)
    qkv *= 2.0 ** torch.randint(-30, 30, qkv.shape)
    qkv[3] *= 0
    qkv[5, :, ::7], qkv[6, :, 1], qkv[7, :, 2:9] = torch.nan, torch.inf, -torch.inf
    arenas = [empty_arena(4, 1, 4, 64, items or torch.float32) for _ in range(2)]

    LayerKv.of(arenas[0], qkv.dtype).write(qkv, sequences)
    kernel.reference(qkv, arenas[1], sequences)

    found, expected = map(as_floats, arenas)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    bad = ~qkv[:, 1:].isfinite()  # [T, K and V, H]
    if items is not None:
        bad = bad.any(-1, keepdim=True).expand_as(bad)
    rows = found.view(4, 2, 4, 64)[sequences.block_tables[0]].transpose(1, 2).flatten(0, 1)
    assert torch.equal(rows.isnan(), bad)


@compiled
@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 20)).map(lambda r: (r[0], r[0] + r[1])),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 40),
    st.sampled_from([2, 4, 6, 16]),
    st.sampled_from([None, torch.int8, torch.float8_e4m3fn]),
)
@settings(max_examples=40, deadline=None)
def test_any_mixture_is_written_as_defined(
    requests: list[tuple[int, int]], width: int, block_size: int, items: torch.dtype | None
) -> None:
    shape = Shape(width=width, rotary=0, block_size=block_size, has_norm=False)

    out, expected, arena, expected_arena = written(shape, requests, torch.float32, items)

    assert torch.equal(out, expected)
    assert torch.equal(bytes_of(arena), bytes_of(expected_arena))


@compiled
@each_dtype
def test_a_token_is_the_same_to_the_bit_alone_and_among_others(dtype: torch.dtype) -> None:
    shape = Shape(width=100, rotary=64)
    qkv, sequences = random_pass(shape, [(7, 7)], dtype)
    norm, rotation = shape.head_norm(dtype), shape.rotation(7)
    assert rotation is not None
    whole, single = (empty_arena(2, 2, 4, 100, dtype) for _ in range(2))

    out = LayerKv.of(whole, dtype).write(qkv, sequences, head_norm=norm, rotation=rotation)
    for token in range(7):
        one = slice(token, token + 1)
        alone = sequences_of([sequences.block_tables[0].tolist()], [(1, token + 1)])
        own_rotation = rotation[0][one], rotation[1][one]
        q = LayerKv.of(single, dtype).write(qkv[one], alone, head_norm=norm, rotation=own_rotation)

        assert torch.equal(q, out[one])

    assert torch.equal(bytes_of(whole), bytes_of(single))
