"""A row of compiled attention is the same to the last bit, whatever is computed beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.passes import empty_arena, sequences_of
from tests.torch_threads import threads
from torch import Tensor

from baton.kernels.attention.layer_kv import LayerKv
from baton.kernels.attention.paged_attention import reference
from baton.kernels.attention.scoring import PLAIN, Scoring
from baton.kernels.cpu.operators import runs
from baton.kernels.paging.quantized_arena import Arena, QuantizedArena
from baton.kernels.paging.window import Chunks, Streaming, Window

pytestmark = pytest.mark.skipif(not runs(torch.zeros(1)), reason="there is no C++ compiler")

DTYPES = [torch.float32, torch.bfloat16]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@dataclass(frozen=True)
class Layer:
    heads: int = 4
    kv_heads: int = 2
    width: int = 32
    block_size: int = 16
    window: Window = None
    scoring: Scoring = PLAIN
    has_sinks: bool = False
    items: torch.dtype | None = None
    """None: those of the queries."""

    def attend(self, q: Tensor, arena: Arena, table: Tensor, context_len: int) -> Tensor:
        """The last tokens of one request."""
        return self.attend_all([q], arena, [table], [context_len])

    def attend_all(
        self, qs: Sequence[Tensor], arena: Arena, tables: Sequence[Tensor], ends: Sequence[int]
    ) -> Tensor:
        requests = [(len(q), end) for q, end in zip(qs, ends, strict=True)]
        sequences = sequences_of(
            [table.tolist() for table in tables], requests, block_size=self.block_size
        )
        sinks = torch.linspace(-1, 1, self.heads) if self.has_sinks else None
        q = torch.cat(list(qs))
        kv = LayerKv.of(arena, q.dtype)
        return kv.attend(q, sequences, self.window, self.scoring, sinks)

    def filled_arena(self, num_blocks: int, dtype: torch.dtype) -> Arena:
        arena = empty_arena(
            num_blocks, self.kv_heads, self.block_size, self.width, self.items or dtype
        )
        if isinstance(arena, QuantizedArena):
            slots = torch.arange(num_blocks * self.block_size)
            kv = torch.randn(len(slots), 2, self.kv_heads, self.width)
            arena.write(slots // self.block_size, slots % self.block_size, kv)
        else:
            arena.copy_(torch.randn(arena.shape))
        return arena


LAYERS = [
    pytest.param(Layer(), id="grouped-query"),
    pytest.param(Layer(heads=5, kv_heads=5), id="multi-head"),
    pytest.param(Layer(heads=7, kv_heads=1), id="multi-query"),
    pytest.param(Layer(width=100), id="odd width"),
    pytest.param(Layer(width=128, block_size=5), id="odd blocks"),
    pytest.param(Layer(window=70), id="window"),
    pytest.param(Layer(window=Chunks(70)), id="chunks"),
    pytest.param(Layer(window=Streaming(70, 5)), id="first tokens"),
    pytest.param(Layer(window=Streaming(30, 100), items=torch.int8), id="many first tokens, int8"),
    pytest.param(Layer(scoring=Scoring(softcap=2.0), has_sinks=True), id="soft cap and sinks"),
    pytest.param(Layer(items=torch.int8), id="int8"),
    pytest.param(Layer(items=torch.float8_e4m3fn, width=24), id="fp8"),
    pytest.param(Layer(heads=8, kv_heads=4, width=128, items=torch.int8), id="int8, read in place"),
]
LENGTH = 600
"""More than a segment of keys."""


def on_threads(num_threads: int, attend: Callable[[], Tensor]) -> Tensor:
    with threads(num_threads):
        return attend()


def given_prompt(layer: Layer, dtype: torch.dtype, length: int) -> tuple[Tensor, Arena, Tensor]:
    """Queries, arena and table of a request."""
    torch.manual_seed(length)
    num_blocks = -(-length // layer.block_size)
    arena = layer.filled_arena(num_blocks, dtype)
    return (
        torch.randn(length, layer.heads, layer.width).to(dtype),
        arena,
        torch.randperm(num_blocks),
    )


@pytest.mark.parametrize("layer", LAYERS)
@each_dtype
def test_decoded_alone_as_in_the_middle_of_a_prompt(layer: Layer, dtype: torch.dtype) -> None:
    q, arena, table = given_prompt(layer, dtype, LENGTH)

    whole = layer.attend(q, arena, table, LENGTH)

    for place in (0, 1, 62, 63, 64, 65, 300, 511, 512, 513, LENGTH - 1):
        alone = layer.attend(q[place : place + 1], arena, table, place + 1)
        assert torch.equal(alone[0], whole[place])


@given(
    st.lists(st.integers(1, 90), min_size=1, max_size=8),
    st.sampled_from(DTYPES),
    st.integers(1, 6),
    st.none() | st.integers(1, 200),
)
@settings(max_examples=25, deadline=None)
def test_in_chunks_of_any_size_as_in_one(
    chunks: list[int], dtype: torch.dtype, group: int, window: int | None
) -> None:
    layer = Layer(heads=group, kv_heads=1, window=window)
    q, arena, table = given_prompt(layer, dtype, sum(chunks))

    whole = layer.attend(q, arena, table, len(q))

    done = 0
    for size in chunks:
        part = layer.attend(q[done : done + size], arena, table, done + size)
        assert torch.equal(part, whole[done : done + size])
        done += size


@each_dtype
def test_alone_as_among_others(dtype: torch.dtype) -> None:
    layer = Layer()
    q, arena, table = given_prompt(layer, dtype, LENGTH)
    ends = [37, 1, LENGTH, 512, 190]
    qs = [q[end - n : end] for end, n in zip(ends, (37, 1, 1, 3, 70), strict=True)]

    together = layer.attend_all(qs, arena, [table] * len(ends), ends)

    alone = [layer.attend(part, arena, table, end) for part, end in zip(qs, ends, strict=True)]
    assert torch.equal(together, torch.cat(alone))


SPLIT = 512
"""Keys of a segment, which is what threads share a long context by."""
THREADS = range(2, 9)
"""More than there are cores, and than there are pieces of a tile."""


@pytest.mark.parametrize("layer", LAYERS)
@each_dtype
def test_a_context_shared_by_threads_as_by_one(layer: Layer, dtype: torch.dtype) -> None:
    ends = [SPLIT - 1, SPLIT, SPLIT + 1, 5 * SPLIT + 3]
    q, arena, table = given_prompt(layer, dtype, ends[-1])

    for end in ends:
        last = q[end - 1 : end]
        alone = on_threads(1, lambda: layer.attend(last, arena, table, end))  # noqa: B023
        for num_threads in THREADS:
            shared = on_threads(num_threads, lambda: layer.attend(last, arena, table, end))  # noqa: B023
            assert torch.equal(shared, alone)


@each_dtype
def test_requests_of_all_lengths_shared_by_threads_as_each_by_one(dtype: torch.dtype) -> None:
    layer = Layer(heads=2, kv_heads=1)
    q, arena, table = given_prompt(layer, dtype, 5 * SPLIT + 3)
    ends = [5 * SPLIT + 3, 1, 700, 2 * SPLIT, SPLIT + 1]
    qs = [q[end - n : end] for end, n in zip(ends, (1, 1, 70, 1, 33), strict=True)]

    alone = [layer.attend(part, arena, table, end) for part, end in zip(qs, ends, strict=True)]

    for num_threads in THREADS:
        shared = on_threads(num_threads, lambda: layer.attend_all(qs, arena, [table] * 5, ends))
        assert torch.equal(shared, torch.cat(alone))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_long_context_shared_by_threads_is_as_defined(layer: Layer) -> None:
    q, arena, table = given_prompt(layer, torch.float32, 3 * SPLIT + 5)
    sinks = torch.linspace(-1, 1, layer.heads) if layer.has_sinks else None

    out = on_threads(4, lambda: layer.attend(q[-3:], arena, table, len(q)))

    wide = arena if isinstance(arena, Tensor) else as_floats(arena)
    requests = [(table.tolist(), 3, len(q))]
    expected = reference(q[-3:], wide, requests, layer.window, layer.scoring, sinks)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def as_floats(arena: QuantizedArena) -> Tensor:
    blocks, heads, _ = arena.units.shape
    units = torch.arange(blocks * heads)
    kv = arena.gather(units, torch.float32)
    return kv.view(blocks, heads, 2, arena.block_size, arena.width)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [64, 128, 256])
def test_long_contexts_are_as_defined(dtype: torch.dtype, width: int) -> None:
    layer = Layer(width=width, heads=2, kv_heads=1, window=1500)
    q, arena, table = given_prompt(layer, dtype, 2000)
    assert isinstance(arena, Tensor)

    out = layer.attend(q[-2:], arena, table, 2000)

    expected = reference(q[-2:], arena, [(table.tolist(), 2, 2000)], layer.window)
    atol = 1e-5 if dtype is torch.float32 else 2e-3
    torch.testing.assert_close(out, expected, rtol=2**-7, atol=atol)


@pytest.mark.parametrize(
    ("dtype", "sink_dtype"),
    [
        pytest.param(torch.float32, torch.float32, id="float32"),
        pytest.param(torch.bfloat16, torch.bfloat16, id="bfloat16"),
        pytest.param(torch.bfloat16, torch.float32, id="wider than q"),
    ],
)
def test_sinks_of_either_dtype_are_as_defined_however_heavy(
    dtype: torch.dtype, sink_dtype: torch.dtype
) -> None:
    layer = Layer()
    q, arena, table = given_prompt(layer, dtype, 70)
    assert isinstance(arena, Tensor)
    sinks = torch.tensor([-300.0, 1.25, 3.0, 300.0]).to(sink_dtype)
    sequences = sequences_of([table.tolist()], [(70, 70)], block_size=layer.block_size)

    out = LayerKv.of(arena, dtype).attend(q, sequences, None, PLAIN, sinks)

    expected = reference(q, arena, [(table.tolist(), 70, 70)], None, PLAIN, sinks)
    atol = 1e-5 if dtype is torch.float32 else 2e-3
    torch.testing.assert_close(out, expected, rtol=2**-7, atol=atol)


def test_sinks_narrower_than_queries_are_refused() -> None:
    q, arena, table = given_prompt(Layer(), torch.float32, 5)
    sequences = sequences_of([table.tolist()], [(5, 5)], block_size=16)

    with pytest.raises(ValueError, match="sinks are float32 or as q"):
        LayerKv.of(arena, q.dtype).attend(q, sequences, sinks=torch.zeros(4, dtype=torch.bfloat16))


@each_dtype
@pytest.mark.parametrize("items", [None, torch.int8], ids=str)
def test_what_wider_queries_left_behind_is_not_read(
    items: torch.dtype | None, dtype: torch.dtype
) -> None:
    narrow, wide = Layer(width=100, items=items), Layer(width=128)
    q, arena, table = given_prompt(narrow, dtype, 80)
    good = narrow.attend(q, arena, table, 80)
    bad, arena_of_bad, its_table = given_prompt(wide, dtype, 80)
    wide.attend(bad.fill_(torch.nan), arena_of_bad, its_table, 80)

    assert torch.equal(narrow.attend(q, arena, table, 80), good)


@each_dtype
def test_a_scale_below_zero_is_as_defined(dtype: torch.dtype) -> None:
    layer = Layer(scoring=Scoring(scale=-9.0))
    q, arena, table = given_prompt(layer, dtype, 130)
    assert isinstance(arena, Tensor)

    out = layer.attend(q, arena, table, 130)

    expected = reference(q, arena, [(table.tolist(), 130, 130)], None, layer.scoring)
    atol = 1e-4 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(out, expected, rtol=2**-6, atol=atol)


def test_zero_has_one_sign_whatever_was_summed_up_before() -> None:
    layer = Layer(heads=1, kv_heads=1, window=100)
    length, rising = 700, 640
    at = torch.arange(length)
    block, slot = at // layer.block_size, at % layer.block_size
    arena = torch.zeros(int(block[-1]) + 1, 1, 2, layer.block_size, layer.width)
    arena[block, 0, 0, slot] = (at >= rising).float()[:, None]
    arena[block, 0, 1, slot] = torch.where(at < rising, -1e-45, -0.0)[:, None]
    table = torch.arange(len(arena))
    q = torch.ones(length, 1, layer.width)

    whole = layer.attend(q, arena, table, length)

    alone = layer.attend(q[-1:], arena, table, length)
    assert torch.equal(alone[0].signbit(), whole[-1].signbit())


@pytest.mark.parametrize("has_sinks", [False, True], ids=["no sinks", "sinks"])
@each_dtype
def test_a_query_gone_bad_spoils_itself_alone(dtype: torch.dtype, has_sinks: bool) -> None:
    layer = Layer(has_sinks=has_sinks)
    q, arena, table = given_prompt(layer, dtype, 80)
    good = layer.attend(q, arena, table, 80)
    q[40, 1] = torch.nan

    out = layer.attend(q, arena, table, 80)

    assert out[40, 1].isnan().all()
    out[40, 1] = good[40, 1]
    assert torch.equal(out, good)
