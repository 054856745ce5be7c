"""Attention over eight-bit items: as over the same arena with what they stand for."""

from __future__ import annotations

import pytest
import torch

from baton.core.kv_layout import KvLayout
from baton.kernels import paged_attention as kernel
from baton.kernels.attention_plan import ArenaShape, plan_attention
from baton.kernels.kv_quantize import dequantize, quantize
from baton.kernels.paged_attention import PLAIN, Scoring
from baton.kernels.quantized_kv import QuantizedArena

NUM_BLOCKS, BLOCK_SIZE, WIDTH, KV_HEADS, HEADS = 32, 4, 8, 2, 4
DTYPES = [torch.int8, torch.float8_e4m3fn]

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["int8", "fp8"])


def empty_arena(dtype: torch.dtype) -> QuantizedArena:
    layout = KvLayout(
        model_fingerprint=b"m",
        dtype=str(dtype).removeprefix("torch."),
        num_layers=1,
        num_kv_heads=KV_HEADS,
        head_dim=WIDTH,
        block_size=BLOCK_SIZE,
    )
    units = torch.zeros(NUM_BLOCKS, KV_HEADS, layout.unit_bytes, dtype=torch.uint8)
    return QuantizedArena(units, dtype, BLOCK_SIZE, WIDTH)


def as_read(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return dequantize(*quantize(x, dtype))


@each_dtype
@pytest.mark.parametrize("scoring", [PLAIN, Scoring(softcap=0.7)], ids=["plain", "softcap"])
@pytest.mark.parametrize("window", [None, 5])
def test_attends_to_what_the_items_stand_for_in_chunks_and_one_by_one(
    dtype: torch.dtype, scoring: Scoring, window: int | None
) -> None:
    generator = torch.Generator().manual_seed(3)
    arena = empty_arena(dtype)
    plain = torch.zeros(NUM_BLOCKS, KV_HEADS, 2, BLOCK_SIZE, WIDTH)
    tables = torch.randperm(NUM_BLOCKS, generator=generator)[:12].view(2, 6)
    done = [0, 0]
    for query_lens in ([7, 10], [6, 1], [1, 1]):
        num_tokens = sum(query_lens)
        q = torch.randn(num_tokens, HEADS, WIDTH, generator=generator)
        k, v = torch.randn(2, num_tokens, KV_HEADS, WIDTH, generator=generator)
        done = [before + new for before, new in zip(done, query_lens, strict=True)]
        shape = ArenaShape(
            num_kv_heads=KV_HEADS, block_size=BLOCK_SIZE, row_bytes=64, dtype=torch.float32
        )
        positions = torch.cat(
            [torch.arange(c - n, c) for n, c in zip(query_lens, done, strict=True)]
        )
        plan = plan_attention(tables, query_lens, done, positions, shape, window)
        requests = list(zip(tables.tolist(), query_lens, done, strict=True))
        new = q, as_read(k, dtype), as_read(v, dtype)

        out = kernel.paged_attention(q, k, v, arena, plan, scoring)

        expected = kernel.reference(new, plain, requests, window, scoring)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)


@each_dtype
def test_what_is_written_is_read_back_and_units_keep_their_padding(dtype: torch.dtype) -> None:
    arena = empty_arena(dtype)
    kv = torch.randn(3, 2, KV_HEADS, WIDTH, generator=torch.Generator().manual_seed(1))
    blocks, offsets = torch.tensor([5, 5, 9]), torch.tensor([0, 3, 2])

    written = arena.write(blocks, offsets, kv)

    assert torch.equal(written, as_read(kv, dtype))
    unit = 5 * KV_HEADS + 1
    found = arena.gather(torch.tensor([unit]), torch.float32)[0]  # [2, S, H]
    assert torch.equal(found[:, 0], written[0, :, 1])
    assert torch.equal(found[:, 3], written[1, :, 1])
    assert not found[:, 1:3].any()
    used = 2 * BLOCK_SIZE * WIDTH + 2 * BLOCK_SIZE * 4
    assert not arena.units[..., used:].any()


@each_dtype
def test_the_error_of_attention_is_within_that_of_keys_and_values(dtype: torch.dtype) -> None:
    """|softmax(s + e) v' - softmax(s) v| <= max|v' - v| + (exp(2 max|e|) - 1) max|v|."""
    generator = torch.Generator().manual_seed(5)
    num_tokens = 24
    q = torch.randn(num_tokens, HEADS, WIDTH, generator=generator)
    k, v = torch.randn(2, num_tokens, KV_HEADS, WIDTH, generator=generator)
    requests = [(list(range(6)), num_tokens, num_tokens)]
    shape = (NUM_BLOCKS, KV_HEADS, 2, BLOCK_SIZE, WIDTH)

    exact = kernel.reference((q, k, v), torch.zeros(shape), requests)
    rough = kernel.reference(
        (q, as_read(k, dtype), as_read(v, dtype)), torch.zeros(shape), requests
    )

    score_error = (q.norm(dim=-1).max() * (as_read(k, dtype) - k).norm(dim=-1).max()) / WIDTH**0.5
    bound = (as_read(v, dtype) - v).abs().max() + torch.expm1(2 * score_error) * v.abs().max()
    assert (rough - exact).abs().max() <= bound
