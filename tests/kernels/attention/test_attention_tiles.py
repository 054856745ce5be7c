"""Attention by the matrix tiles of a CPU (AMX): the order of its sums, for any number of rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.kernels.attention.test_attention_rows import Layer, given_prompt, on_threads
from tests.kernels.tile_order import sums_of_tiles
from torch import Tensor

from baton.kernels.attention.scoring import Scoring
from baton.kernels.paging.quantized_arena import Arena

pytestmark = pytest.mark.usefixtures("tiles")
BF16 = torch.bfloat16
HUGE = 2.0**30
"""What is added to it is lost."""
HEADS = [pytest.param(3, id="few rows"), pytest.param(40, id="many rows")]


def arena_of(keys: Tensor, values: Tensor, block_size: int) -> Arena:
    """One KV head, its blocks in order: [keys, width] each."""
    kv = torch.stack([keys, values]).to(BF16)
    return kv.view(2, -1, block_size, keys.shape[1]).transpose(0, 1)[:, None].contiguous()


def attend_last(layer: Layer, query: Tensor, arena: Arena, length: int) -> Tensor:
    """Of the last token, whose heads all ask the same."""
    q = query.to(BF16).expand(1, layer.heads, layer.width).contiguous()
    return layer.attend(q, arena, torch.arange(length // layer.block_size), length)[0]


@pytest.mark.parametrize("heads", HEADS)
def test_values_are_added_in_the_order_of_tiles(heads: int) -> None:
    layer, length = Layer(heads=heads, kv_heads=1, width=96), 192
    values = torch.randn(length, layer.width, generator=torch.Generator().manual_seed(1))
    values[:3, 0] = torch.tensor([HUGE, 1, -HUGE])
    values[[64, 96, 97], 1] = torch.tensor([HUGE, -HUGE, 1])
    arena = arena_of(torch.zeros(length, layer.width), values, layer.block_size)

    out = attend_last(layer, torch.zeros(layer.width), arena, length)

    sums = sums_of_tiles(torch.ones(1, length, dtype=BF16), values.to(BF16).T)
    mean = torch.from_numpy(sums * (np.float32(1) / np.float32(length))).to(BF16)
    assert torch.equal(out, mean.expand(heads, -1))


@pytest.mark.parametrize("heads", HEADS)
def test_scores_are_added_in_the_order_of_tiles(heads: int) -> None:
    layer, length = Layer(heads=heads, kv_heads=1, width=64, scoring=Scoring(scale=1.0)), 16
    query = torch.zeros(layer.width)
    query[[0, 1, 2, 32, 33]] = torch.tensor([HUGE, 1, -HUGE, -HUGE, 1])
    keys = torch.zeros(length, layer.width)
    keys[0, :3] = 1  # 1: even and odd ones are apart
    keys[1, [0, 32, 33]] = 1  # 0: of 32 items at most
    keys[2, :2] = torch.tensor([0, 2.0])
    arena = arena_of(keys, torch.eye(length, layer.width), layer.block_size)

    out = attend_last(layer, query, arena, length)[:, :length]

    scores = torch.from_numpy(sums_of_tiles(query[None].to(BF16), keys.to(BF16)))
    assert scores[0, :3].tolist() == [1, 0, 2]
    torch.testing.assert_close(out.float(), scores.softmax(1).expand_as(out), rtol=2**-7, atol=1e-4)


@pytest.mark.parametrize("items", [None, torch.int8, torch.float8_e4m3fn], ids=str)
def test_a_row_has_the_same_bits_beside_any_number_of_rows(items: torch.dtype | None) -> None:
    layer, length = Layer(heads=1, kv_heads=1, width=80, items=items), 150
    q, arena, table = given_prompt(layer, BF16, length)
    alone = torch.cat(
        [layer.attend(q[i : i + 1], arena, table, i + 1) for i in range(length - 65, length)]
    )

    for count in range(1, 66):
        assert torch.equal(layer.attend(q[-count:], arena, table, length), alone[-count:])


@pytest.mark.parametrize(
    "layer", [Layer(window=70, has_sinks=True), Layer(heads=16, items=torch.int8, width=64)]
)
def test_a_prompt_in_chunks_and_shared_by_threads_is_as_at_once(layer: Layer) -> None:
    q, arena, table = given_prompt(layer, BF16, 600)
    whole = on_threads(1, lambda: layer.attend(q, arena, table, 600))

    ends = [1, 8, 71, 330, 599, 600]
    for first, end in zip([0, *ends], ends, strict=False):
        part = on_threads(3, lambda: layer.attend(q[first:end], arena, table, end))  # noqa: B023
        assert torch.equal(part, whole[first:end])


def test_what_is_denormal_counts_as_zero() -> None:
    tiny = torch.tensor([2.0**-130, 2.0**-126]).repeat(32)  # the first is denormal
    for heads in (1, 32):
        layer = Layer(heads=heads, kv_heads=1, width=64)
        arena = arena_of(torch.zeros(16, 64), tiny.expand(16, 64), layer.block_size)

        out = attend_last(layer, torch.zeros(64), arena, 16)

        assert torch.equal(out[0, :2].float(), torch.tensor([0.0, 2.0**-126]))
        assert torch.equal(out, out[:1].expand_as(out))
