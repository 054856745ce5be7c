"""Attention over eight-bit items: as over the same arena with what they stand for."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.passes import empty_arena, sequences_of

from baton.kernels.attention import layer_kv
from baton.kernels.attention import paged_attention as kernel
from baton.kernels.attention.layer_kv import LayerKv
from baton.kernels.attention.scoring import PLAIN, Scoring
from baton.kernels.cache_write.rope_kv_write import write_kv
from baton.kernels.cpu.operators import runs
from baton.kernels.paging.kv_quantize import dequantize, quantize
from baton.kernels.paging.quantized_arena import QuantizedArena

NUM_BLOCKS, BLOCK_SIZE, WIDTH, KV_HEADS, HEADS = 32, 4, 8, 2, 4
DTYPES = [torch.int8, torch.float8_e4m3fn]

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["int8", "fp8"])


def quantized_arena(dtype: torch.dtype) -> QuantizedArena:
    arena = empty_arena(NUM_BLOCKS, KV_HEADS, BLOCK_SIZE, WIDTH, dtype)
    assert isinstance(arena, QuantizedArena)
    return arena


def as_read(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return dequantize(*quantize(x, dtype))


@each_dtype
@pytest.mark.parametrize("path", ["compiled", "torch"])
@pytest.mark.parametrize("scoring", [PLAIN, Scoring(softcap=0.7)], ids=["plain", "softcap"])
@pytest.mark.parametrize("window", [None, 5])
def test_attends_to_what_the_items_stand_for_in_chunks_and_one_by_one(
    dtype: torch.dtype,
    scoring: Scoring,
    window: int | None,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if path == "torch":
        monkeypatch.setattr(layer_kv, "_has_operators", lambda *of: False)
    elif not runs(torch.zeros(1)):
        pytest.skip("there is no C++ compiler")
    generator = torch.Generator().manual_seed(3)
    arena = quantized_arena(dtype)
    plain = torch.zeros(NUM_BLOCKS, KV_HEADS, 2, BLOCK_SIZE, WIDTH)
    tables = torch.randperm(NUM_BLOCKS, generator=generator)[:12].view(2, 6)
    done = [0, 0]
    for query_lens in ([7, 10], [6, 1], [1, 1]):
        num_tokens = sum(query_lens)
        q = torch.randn(num_tokens, HEADS, WIDTH, generator=generator)
        k, v = torch.randn(2, num_tokens, KV_HEADS, WIDTH, generator=generator)
        done = [before + new for before, new in zip(done, query_lens, strict=True)]
        requests = list(zip(tables.tolist(), query_lens, done, strict=True))
        sequences = sequences_of(tables.tolist(), list(zip(query_lens, done, strict=True)))

        write_kv(k, v, arena, sequences)
        out = LayerKv.of(arena, q.dtype).attend(q, sequences, window, scoring)

        write_kv(as_read(k, dtype), as_read(v, dtype), plain, sequences)
        expected = kernel.reference(q, plain, requests, window, scoring)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)


@each_dtype
def test_what_is_written_is_read_back_and_units_keep_their_padding(dtype: torch.dtype) -> None:
    arena = quantized_arena(dtype)
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
    sequences = sequences_of([list(range(6))], [(num_tokens, num_tokens)])

    def attended(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        arena = torch.zeros(NUM_BLOCKS, KV_HEADS, 2, BLOCK_SIZE, WIDTH)
        write_kv(keys, values, arena, sequences)
        return kernel.reference(q, arena, requests)

    exact, rough = attended(k, v), attended(as_read(k, dtype), as_read(v, dtype))

    score_error = (q.norm(dim=-1).max() * (as_read(k, dtype) - k).norm(dim=-1).max()) / WIDTH**0.5
    bound = (as_read(v, dtype) - v).abs().max() + torch.expm1(2 * score_error) * v.abs().max()
    assert (rough - exact).abs().max() <= bound
