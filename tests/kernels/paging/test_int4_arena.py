"""Attention over int4 KV: a token sees the blocks before its own in 4 bits and its own as it was
computed, however its request was cut into passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.paging.test_int4_block import as_read, unit_bytes
from tests.kernels.passes import sequences_of
from torch import Tensor

from baton.kernels.attention import layer_kv
from baton.kernels.attention.layer_kv import LayerKv
from baton.kernels.attention.scoring import PLAIN, Scoring
from baton.kernels.cpu.operators import runs
from baton.kernels.paging.int4_arena import Int4Arena
from baton.kernels.paging.window import Chunks, Streaming, Window, first_seen, num_first_of

NUM_SLOTS, MAX_TOKENS = 4, 700
BOUND = {torch.float32: 2e-4, torch.bfloat16: 4e-2}


@dataclass(frozen=True)
class Layer:
    heads: int = 4
    kv_heads: int = 2
    width: int = 32
    block_size: int = 16
    window: Window = None
    scoring: Scoring = PLAIN
    has_sinks: bool = False

    @property
    def sinks(self) -> Tensor | None:
        return torch.linspace(-1, 1, self.heads) if self.has_sinks else None

    def qkv(self, length: int, dtype: torch.dtype) -> Tensor:
        torch.manual_seed(length)
        return torch.randn(length, self.heads + 2 * self.kv_heads, self.width).to(dtype)

    def definition(self, qkv: Tensor) -> Tensor:
        """Of one request, token by token."""
        q, k, v = torch.split(qkv.float(), [self.heads, self.kv_heads, self.kv_heads], dim=1)
        kv = torch.stack((k, v)).permute(2, 0, 1, 3)  # [K, 2, L, H]
        size = self.block_size
        out = torch.empty_like(q)
        for place in range(len(q)):
            own = place // size * size
            past = kv[:, :, :own].reshape(self.kv_heads, 2, -1, size, self.width).transpose(1, 2)
            seen = torch.cat((as_read(past).transpose(1, 2).flatten(2, 3), kv[:, :, own:]), dim=2)
            first = first_seen(self.window, place)
            visible = [*range(min(num_first_of(self.window), first)), *range(first, place + 1)]
            keys, values = seen[:, :, visible].unbind(1)
            queries = q[place].view(self.kv_heads, -1, self.width)
            scores = queries @ keys.mT * self.scoring.scale_of(self.width)
            if self.scoring.softcap is not None:
                scores = self.scoring.softcap * (scores / self.scoring.softcap).tanh()
            if self.sinks is not None:
                column = self.sinks.view(self.kv_heads, -1, 1)
                weights = torch.cat((scores, column), dim=-1).softmax(-1)[..., :-1]
            else:
                weights = scores.softmax(-1)
            out[place] = (weights @ values).view(self.heads, self.width)
        return out


@dataclass
class Cache:
    """An arena whose requests each have a slot for their open blocks, and a block table."""

    layer: Layer
    dtype: torch.dtype
    length: int
    num_open: int = 1
    arena: Int4Arena = field(init=False)

    def __post_init__(self) -> None:
        layer, self.num_blocks = self.layer, -(-self.length // self.layer.block_size)
        heads, size, width = layer.kv_heads, layer.block_size, layer.width
        self.arena = Int4Arena(
            torch.zeros(
                NUM_SLOTS * self.num_blocks, heads, unit_bytes(size, width), dtype=torch.uint8
            ),
            torch.zeros(NUM_SLOTS, self.num_open, heads, 2, size, width, dtype=self.dtype),
            torch.zeros(MAX_TOKENS + NUM_SLOTS * (size - 1), 2, heads, width, dtype=self.dtype),
        )
        self.tables = torch.randperm(NUM_SLOTS * self.num_blocks).view(NUM_SLOTS, -1).tolist()

    def attend(self, parts: Sequence[tuple[int, Tensor, int]]) -> Tensor:
        """Slot, rows [T, N + 2K, H] and how many tokens are behind them."""
        sequences = sequences_of(
            [self.tables[slot] for slot, _, _ in parts],
            [(len(rows), end) for _, rows, end in parts],
            block_size=self.layer.block_size,
        )
        sequences = replace(sequences, open_slots=torch.tensor([slot for slot, _, _ in parts]))
        kv, layer = LayerKv.of(self.arena, self.dtype), self.layer
        q = kv.write(torch.cat([rows for _, rows, _ in parts]), sequences)
        return kv.attend(q, sequences, layer.window, layer.scoring, layer.sinks)

    def drafting(self, qkv: Tensor, passes: Sequence[tuple[int, int]]) -> Tensor:
        """Each pass has so many of the next rows, and so many wrong ones behind them."""
        out, done = [], 0
        for num_right, num_wrong in passes:
            stop = done + num_right
            rows = torch.cat((qkv[done:stop], qkv[:num_wrong] + 1))
            out.append(self.attend([(0, rows, stop + num_wrong)])[:num_right])
            done = stop
        return torch.cat(out)

    def in_chunks(self, qkv: Tensor, lengths: Sequence[int], slot: int = 0) -> Tensor:
        out, done = [], 0
        for length in lengths:
            out.append(self.attend([(slot, qkv[done : done + length], done + length)]))
            done += length
        return torch.cat(out)


LAYERS = [
    pytest.param(Layer(), id="grouped-query"),
    pytest.param(Layer(heads=7, kv_heads=1, width=64), id="multi-query"),
    pytest.param(Layer(width=100, block_size=5), id="odd width and blocks"),
    pytest.param(Layer(width=8, block_size=4, heads=2), id="narrow"),
    pytest.param(Layer(block_size=128), id="long blocks"),
    pytest.param(Layer(window=37), id="window"),
    pytest.param(Layer(window=Chunks(40)), id="chunks"),
    pytest.param(Layer(window=Streaming(70, 5)), id="first tokens"),
    pytest.param(Layer(window=Streaming(9, 4), block_size=32), id="first tokens, long blocks"),
    pytest.param(Layer(scoring=Scoring(softcap=2.0), has_sinks=True), id="soft cap and sinks"),
]
each_layer = pytest.mark.parametrize("layer", LAYERS)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@pytest.fixture(params=["compiled", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(layer_kv, "_has_operators", lambda *of: False)
    elif not runs(torch.zeros(1)):
        pytest.skip("there is no C++ compiler")
    return str(request.param)


@each_layer
@each_dtype
def test_attends_as_defined_in_chunks_and_one_by_one(
    layer: Layer, dtype: torch.dtype, path: str
) -> None:
    qkv = layer.qkv(200, dtype)
    cache = Cache(layer, dtype, 200)

    found = cache.in_chunks(qkv, [1, 40, 3, 100, *[1] * 6, 50])

    torch.testing.assert_close(
        found.float(), layer.definition(qkv), atol=BOUND[dtype], rtol=BOUND[dtype]
    )


@pytest.mark.skipif(not runs(torch.zeros(1)), reason="there is no C++ compiler")
@each_layer
@each_dtype
def test_a_row_has_the_same_bits_in_any_chunk(layer: Layer, dtype: torch.dtype) -> None:
    length = 600
    qkv = layer.qkv(length, dtype)
    whole = Cache(layer, dtype, length)
    expected = whole.in_chunks(qkv, [length])

    for lengths in ([300, 1, 1, 298], [7] * 80 + [40], [513, 87], [length - 20] + [1] * 20):
        again = Cache(layer, dtype, length)
        again.tables = whole.tables
        assert torch.equal(again.in_chunks(qkv, lengths), expected)
        assert torch.equal(again.arena.units, whole.arena.units)


@pytest.mark.parametrize("num_open", [1, 2])
def test_what_drafts_that_were_wrong_have_filled_is_written_over(num_open: int, path: str) -> None:
    layer, dtype = Layer(block_size=8), torch.bfloat16
    qkv = layer.qkv(100, dtype)
    passes, length = [(21, 0)], 21
    while length + 2 < len(qkv):
        num_right = 1 + length % 3
        length += num_right
        passes.append((num_right, num_open * 8 - length % 8))  # to the end of what stays open
    whole, cache = Cache(layer, dtype, 128), Cache(layer, dtype, 128, num_open)
    cache.tables = whole.tables
    expected = whole.in_chunks(qkv[:length], [n for n, _ in passes])

    assert torch.equal(cache.drafting(qkv, passes), expected)
    full = whole.tables[0][: length // 8]
    assert torch.equal(cache.arena.units[full], whole.arena.units[full])


@pytest.mark.skipif(not runs(torch.zeros(1)), reason="there is no C++ compiler")
@given(
    st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=1, max_size=12),
    st.integers(1, 4),
)
@settings(max_examples=30, deadline=None)
def test_a_row_has_the_same_bits_in_any_batch_on_any_number_of_threads(
    steps: list[list[int]], num_threads: int
) -> None:
    layer, dtype, before = Layer(block_size=8), torch.bfloat16, torch.get_num_threads()
    qkvs = [layer.qkv(600 + slot, dtype) for slot in range(3)]
    alone = [Cache(layer, dtype, 640).in_chunks(qkv, [len(qkv)]) for qkv in qkvs]
    cache, done = Cache(layer, dtype, 640), [0, 0, 0]
    torch.set_num_threads(num_threads)
    try:
        for lengths in steps:
            slots = [slot for slot in range(3) if lengths[slot]]
            ends = [done[slot] + lengths[slot] for slot in range(3)]
            parts = [(slot, qkvs[slot][done[slot] : ends[slot]], ends[slot]) for slot in slots]
            if not parts:
                continue
            found = torch.split(cache.attend(parts), [lengths[slot] for slot in slots])
            for slot, rows in zip(slots, found, strict=True):
                assert torch.equal(rows, alone[slot][done[slot] : ends[slot]])
            done = ends
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not runs(torch.zeros(1)), reason="there is no C++ compiler")
@each_dtype
def test_compiled_code_quantises_as_torch_does(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = Layer(width=40)
    qkv = layer.qkv(160, dtype) * torch.logspace(-6, 5, 160)[:, None, None]
    one, other = Cache(layer, dtype, 160), Cache(layer, dtype, 160)
    other.tables = one.tables

    one.in_chunks(qkv.to(dtype), [50, 110])
    monkeypatch.setattr(layer_kv, "_has_operators", lambda *of: False)
    other.in_chunks(qkv.to(dtype), [50, 110])

    assert torch.equal(one.arena.units, other.arena.units)


def test_a_pass_larger_than_was_prepared_for_is_refused() -> None:
    layer = Layer()
    cache = Cache(layer, torch.float32, 2000)

    with pytest.raises(ValueError, match="there is room for"):
        cache.in_chunks(layer.qkv(MAX_TOKENS + 200, torch.float32), [MAX_TOKENS + 200])
