"""Norm, rotate and store in one kernel, against the definition made of several.

The interpreter cuts float32 off where it becomes bfloat16, and a device rounds: here a result may
differ by the last place of each of three steps.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.kernels.passes import sequences_of
from torch import Tensor

from baton.kernels.attention.layer_kv import LayerKv
from baton.kernels.cache_write import rope_kv_write as public
from baton.kernels.cache_write.rope_kv_write_gpu import rope_kv_write
from baton.kernels.cache_write.rotation import HeadNorm, Rotation
from baton.kernels.paging.arena_gpu import PagedCache
from baton.kernels.paging.quantized_arena import Arena, QuantizedArena
from baton.kernels.paging.sequences import Sequences

NUM_BLOCKS, BLOCK_SIZE, QUERIES, KV_HEADS = 24, 4, 4, 2
REQUESTS = [(3, 9), (1, 4), (6, 6)]
TABLES = [[7, 3, 1], [9], [2, 8]]
BFLOAT16, FP8 = torch.bfloat16, torch.float8_e4m3fn
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, BFLOAT16: 3 * 2**-7}


def qkv_of(width: int, dtype: torch.dtype) -> Tensor:
    num_tokens = sum(query_len for query_len, _ in REQUESTS)
    generator = torch.Generator().manual_seed(5)
    return torch.randn(num_tokens, QUERIES + 2 * KV_HEADS, width, generator=generator).to(dtype)


def sequences() -> Sequences:
    return sequences_of(TABLES, REQUESTS, block_size=BLOCK_SIZE)


def plain_arena(width: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros(NUM_BLOCKS, KV_HEADS, 2, BLOCK_SIZE, width, dtype=dtype)


def quantized_arena(width: int, items: torch.dtype) -> QuantizedArena:
    num_bytes = -(-2 * BLOCK_SIZE * (width + 4) // 64) * 64
    units = torch.zeros(NUM_BLOCKS, KV_HEADS, num_bytes, dtype=torch.uint8)
    return QuantizedArena(units, items, BLOCK_SIZE, width)


def rotation_of(num_tokens: int, half: int) -> Rotation:
    angles = torch.rand(num_tokens, half, generator=torch.Generator().manual_seed(6)) * 6
    return angles.cos(), angles.sin()


def norm_of(width: int, dtype: torch.dtype) -> HeadNorm:
    q_weight, k_weight = torch.rand(2, width, generator=torch.Generator().manual_seed(7)) + 0.5
    return HeadNorm(q_weight.to(dtype), k_weight.to(dtype), 1e-6)


STEPS = [
    pytest.param({}, id="stored only"),
    pytest.param({"rotation": rotation_of(10, 4)}, id="rotated"),
    pytest.param({"rotation": rotation_of(10, 3)}, id="rotated in part"),
    pytest.param({"head_norm": norm_of(8, torch.float32)}, id="normed"),
    pytest.param(
        {"head_norm": norm_of(8, torch.float32), "rotation": rotation_of(10, 4)},
        id="normed and rotated",
    ),
]
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16])
each_step = pytest.mark.parametrize("steps", STEPS)


@each_dtype
@each_step
def test_queries_and_the_cache_are_as_defined(
    dtype: torch.dtype, steps: dict[str, Rotation | HeadNorm]
) -> None:
    qkv, arena, expected_arena = qkv_of(8, dtype), plain_arena(8, dtype), plain_arena(8, dtype)
    expected = public.reference(qkv, expected_arena, sequences(), **steps)  # type: ignore[arg-type]

    q = rope_kv_write(qkv, PagedCache.of(arena), sequences(), **steps)  # type: ignore[arg-type]

    rtol = TOLERANCE[dtype]
    torch.testing.assert_close(q, expected, rtol=rtol, atol=rtol)
    torch.testing.assert_close(arena, expected_arena, rtol=rtol, atol=rtol)
    assert torch.equal(arena == 0, expected_arena == 0)


def test_an_odd_width_and_many_tokens_to_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.kernels.cache_write.rope_kv_write_gpu.FEW_TOKENS", 4)
    steps = {"head_norm": norm_of(100, torch.float32), "rotation": rotation_of(10, 25)}
    qkv, arena, expected_arena = (
        qkv_of(100, torch.float32),
        plain_arena(100, torch.float32),
        plain_arena(100, torch.float32),
    )
    expected = public.reference(qkv, expected_arena, sequences(), **steps)  # type: ignore[arg-type]

    q = rope_kv_write(qkv, PagedCache.of(arena), sequences(), **steps)  # type: ignore[arg-type]

    torch.testing.assert_close(q, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(arena, expected_arena, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16])
def test_items_of_eight_bits_and_their_scales_are_those_of_the_definition(
    dtype: torch.dtype,
) -> None:
    qkv = qkv_of(8, dtype)
    arena, expected = quantized_arena(8, torch.int8), quantized_arena(8, torch.int8)
    public.reference(qkv, expected, sequences())

    rope_kv_write(qkv, PagedCache.of(arena), sequences())

    assert torch.equal(arena.units, expected.units)


def test_items_of_fp8_are_those_of_the_definition() -> None:
    """Of numbers that need no rounding, which the interpreter gets wrong."""
    qkv = torch.randint(-7, 8, qkv_of(8, BFLOAT16).shape).to(BFLOAT16)
    qkv[..., 0] = 7
    arena, expected = quantized_arena(8, FP8), quantized_arena(8, FP8)
    public.reference(qkv, expected, sequences())

    rope_kv_write(qkv, PagedCache.of(arena), sequences())

    assert torch.equal(arena.units, expected.units)


@pytest.mark.parametrize("items", [None, torch.int8])
def test_what_is_not_finite_is_stored_as_nan(items: torch.dtype | None) -> None:
    qkv = torch.ones(10, QUERIES + 2 * KV_HEADS, 8)
    qkv[0, -1, 2], qkv[4, QUERIES, 3] = torch.nan, -torch.inf
    arena: Arena = plain_arena(8, torch.float32)
    if items is not None:
        arena = quantized_arena(8, items)

    rope_kv_write(qkv, PagedCache.of(arena), sequences())

    found = arena
    if isinstance(arena, QuantizedArena):
        found = arena.gather(torch.arange(NUM_BLOCKS * KV_HEADS), torch.float32)
    assert isinstance(found, Tensor)
    num_bad = 2 if items is None else 2 * 8  # a number, or the row that shares its scale
    assert found.isnan().sum() == num_bad
    assert (found == 0).sum() == found.numel() - 10 * KV_HEADS * 2 * 8


@pytest.mark.gpu
@pytest.mark.parametrize("items", [None, torch.int8, FP8])
@each_dtype
@each_step
def test_on_a_device_it_is_as_defined(
    items: torch.dtype | None, dtype: torch.dtype, steps: dict[str, Rotation | HeadNorm]
) -> None:
    qkv, made = qkv_of(8, dtype), sequences()
    names = ("positions", "query_starts", "context_lens", "block_tables")
    on_device = replace(made, **{name: getattr(made, name).cuda() for name in names})
    arenas: list[Arena] = []
    for device in ("cpu", "cuda"):
        arena: Arena = plain_arena(8, dtype).to(device)
        if items is not None:
            quantized = quantized_arena(8, items)
            arena = replace(quantized, units=quantized.units.to(device))
        arenas.append(arena)
    there = {name: _to_device(step) for name, step in steps.items()}
    expected = public.reference(qkv, arenas[0], made, **steps)  # type: ignore[arg-type]

    q = LayerKv.of(arenas[1], dtype).write(qkv.cuda(), on_device, **there)  # type: ignore[arg-type]

    rtol = TOLERANCE[dtype]
    torch.testing.assert_close(q.cpu(), expected, rtol=rtol, atol=rtol)
    units = torch.arange(NUM_BLOCKS * KV_HEADS)
    here, found = (
        arena.gather(units.to(device), torch.float32).cpu()
        if isinstance(arena, QuantizedArena)
        else arena.cpu().float()
        for arena, device in zip(arenas, ("cpu", "cuda"), strict=True)
    )
    # A number that rounds the other way is the next item: 1 in 127, or 1 in 8.
    atol = {None: rtol, torch.int8: 0.04, FP8: 0.3}[items]
    torch.testing.assert_close(found, here, rtol=rtol, atol=atol)


def _to_device(step: Rotation | HeadNorm) -> Rotation | HeadNorm:
    if isinstance(step, HeadNorm):
        return HeadNorm(step.q_weight.cuda(), step.k_weight.cuda(), step.eps)
    return step[0].cuda(), step[1].cuda()
