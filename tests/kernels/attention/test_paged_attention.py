"""Attention over blocks, compiled and by torch, against its definition: one token after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kernels.passes import sequences_of
from torch import Tensor

from baton.kernels.attention import explicit_attention, layer_kv
from baton.kernels.attention import paged_attention as kernel
from baton.kernels.attention.layer_kv import LayerKv
from baton.kernels.attention.scoring import PLAIN, Scoring
from baton.kernels.cache_write.rope_kv_write import write_kv
from baton.kernels.cpu.operators import runs
from baton.kernels.paging import attention_plan
from baton.kernels.paging.quantized_arena import Arena, QuantizedArena
from baton.kernels.paging.window import Chunks, Streaming, Window

NUM_BLOCKS, BLOCK_SIZE, WIDTH = 64, 4, 8


@dataclass(frozen=True)
class Heads:
    query: int
    kv: int
    width: int = WIDTH
    window: Window = None
    scoring: Scoring = PLAIN
    has_sinks: bool = False

    def sinks(self) -> Tensor | None:
        return torch.linspace(-2, 2, self.query) if self.has_sinks else None


Requests = Sequence[tuple[int, int]]
"""(query_len, context_len) of each"""

by_torch = pytest.mark.usefixtures("torch_alone")
by_any = pytest.mark.parametrize("path", ["compiled", "torch"], indirect=True)


@pytest.fixture
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is no compiler."""
    monkeypatch.setattr(layer_kv, "_has_operators", lambda *of: False)


@pytest.fixture
def path(request: pytest.FixtureRequest) -> None:
    if request.param == "torch":
        request.getfixturevalue("torch_alone")
    elif not runs(torch.zeros(1)):
        pytest.skip("there is no C++ compiler")


def attend(
    requests: Requests, heads: Heads, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Requests in scrambled blocks, by the kernel and by its definition.

    Returns both outputs, then both arenas.
    """
    generator = torch.Generator().manual_seed(7)
    num_tokens = sum(query_len for query_len, _ in requests)
    shape = (NUM_BLOCKS, heads.kv, 2, BLOCK_SIZE, heads.width)
    arena = torch.randn(shape, generator=generator).to(dtype)
    q = torch.randn(num_tokens, heads.query, heads.width, generator=generator).to(dtype)
    k, v = torch.randn(2, num_tokens, heads.kv, heads.width, generator=generator).to(dtype)
    order = iter(torch.randperm(NUM_BLOCKS, generator=generator).tolist())
    tables = [[next(order) for _ in range(-(-c // BLOCK_SIZE))] for _, c in requests]
    expected_arena = arena.clone()
    write_one_by_one(k, v, expected_arena, tables, requests)
    expected = kernel.reference(
        q,
        expected_arena,
        [(t, *r) for t, r in zip(tables, requests, strict=True)],
        heads.window,
        heads.scoring,
        heads.sinks(),
    )
    sequences = sequences_of(tables, requests)
    write_kv(k, v, arena, sequences)
    layer = LayerKv.of(arena, dtype)
    out = layer.attend(q, sequences, heads.window, heads.scoring, heads.sinks())
    return out, expected, arena, expected_arena


def write_one_by_one(
    k: torch.Tensor,
    v: torch.Tensor,
    arena: torch.Tensor,
    tables: Sequence[Sequence[int]],
    requests: Requests,
) -> None:
    token = 0
    for table, (query_len, context_len) in zip(tables, requests, strict=True):
        for place in range(context_len - query_len, context_len):
            arena[table[place // BLOCK_SIZE], :, 0, place % BLOCK_SIZE] = k[token]
            arena[table[place // BLOCK_SIZE], :, 1, place % BLOCK_SIZE] = v[token]
            token += 1


def assert_as_defined(requests: Requests, heads: Heads) -> None:
    out, expected, arena, expected_arena = attend(requests, heads)

    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)
    assert torch.equal(arena, expected_arena)


CAPPED = Scoring(softcap=0.7)

KINDS = [
    pytest.param(Heads(4, 4), id="multi-head"),
    pytest.param(Heads(4, 2), id="grouped-query"),
    pytest.param(Heads(4, 1), id="multi-query"),
    pytest.param(Heads(1, 1), id="one head"),
    pytest.param(Heads(6, 2, width=5), id="odd width"),
    pytest.param(Heads(4, 2, window=1), id="window of itself alone"),
    pytest.param(Heads(4, 2, window=6), id="window"),
    pytest.param(Heads(4, 2, window=8), id="window of two blocks"),
    pytest.param(Heads(4, 2, window=100), id="window that hides nothing"),
    pytest.param(Heads(4, 2, window=Chunks(6)), id="chunks"),
    pytest.param(Heads(4, 2, window=Chunks(1)), id="chunks of one"),
    pytest.param(Heads(4, 2, window=Streaming(5, 3)), id="first tokens"),
    pytest.param(Heads(4, 2, window=Streaming(4, 90)), id="first tokens are all"),
    pytest.param(Heads(4, 2, window=Streaming(3, 0)), id="none of the first"),
    pytest.param(Heads(4, 2, window=Chunks(100)), id="chunks that hide nothing"),
    pytest.param(Heads(4, 2, scoring=Scoring(scale=0.9)), id="scale"),
    pytest.param(Heads(4, 2, scoring=CAPPED), id="soft cap"),
    pytest.param(Heads(4, 2, has_sinks=True), id="sinks"),
    pytest.param(
        Heads(6, 3, 5, window=6, scoring=Scoring(scale=0.9, softcap=0.7), has_sinks=True),
        id="all of them",
    ),
    pytest.param(Heads(9, 1), id="many heads for one"),
    pytest.param(Heads(2, 1, width=128), id="width of a whole tile"),
]


@by_any
@pytest.mark.parametrize("heads", KINDS)
@pytest.mark.parametrize(
    "requests",
    [
        pytest.param([(1, 1)], id="the first token of all"),
        pytest.param([(1, 9), (1, 4), (1, 30)], id="decoding only"),
        pytest.param([(9, 9)], id="a whole prompt"),
        pytest.param([(7, 7), (8, 8)], id="two whole prompts"),
        pytest.param([(3, 10)], id="a later chunk"),
        pytest.param([(1, 5), (6, 6), (1, 17), (5, 21), (1, 8)], id="everything at once"),
    ],
)
@pytest.mark.usefixtures("path")
def test_attention_is_as_defined(requests: Requests, heads: Heads) -> None:
    assert_as_defined(requests, heads)


ANY_REQUESTS = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 20)).map(lambda r: (r[0], r[0] + r[1])),
    min_size=1,
    max_size=6,
)


@by_any
@pytest.mark.usefixtures("path")
@given(
    ANY_REQUESTS,
    st.none() | st.integers(1, 30),
    st.sampled_from([PLAIN, CAPPED]),
    st.booleans(),
    st.integers(1, 9),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_attention_is_as_defined_for_any_mixture(
    requests: Requests, window: int | None, scoring: Scoring, has_sinks: bool, group: int
) -> None:
    assert_as_defined(requests, Heads(group, 1, 8, window, scoring, has_sinks))


@by_any
@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(("dtype", "atol"), [(torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
@pytest.mark.parametrize("scoring", [PLAIN, CAPPED], ids=["plain", "capped"])
def test_half_precision_is_near(dtype: torch.dtype, atol: float, scoring: Scoring) -> None:
    heads = Heads(4, 2, window=10, scoring=scoring)

    out, expected, _, _ = attend([(1, 19), (6, 6), (5, 12)], heads, dtype)

    assert out.dtype is dtype
    torch.testing.assert_close(out, expected, rtol=0, atol=atol)


@by_torch
@pytest.mark.parametrize("window", [None, 9])
def test_many_long_requests_are_attended_in_groups(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_bytes = 2 * 2 * BLOCK_SIZE * WIDTH * 4
    monkeypatch.setattr(attention_plan, "GATHER_BYTES", 6 * block_bytes)

    assert_as_defined(
        [(1, 40), (1, 2), (1, 11), (1, 10), (1, 12), (1, 1)], Heads(4, 2, window=window)
    )


@by_torch
@pytest.mark.parametrize("scoring", [PLAIN, CAPPED], ids=["plain", "capped"])
@pytest.mark.parametrize("window", [None, 9, Chunks(9), Streaming(9, 2)])
def test_a_long_chunk_is_cut_and_still_sees_its_past(
    window: Window, scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_plan, "MASK_ITEMS", 100)
    monkeypatch.setattr(attention_plan, "MIN_WINDOW_CUT", 4)
    monkeypatch.setattr(explicit_attention, "SCORE_ITEMS", 50)

    assert_as_defined([(20, 33), (1, 3), (23, 23)], Heads(4, 2, window=window, scoring=scoring))


@by_any
@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("is_value", [False, True], ids=["key", "value"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("items", [None, torch.int8, torch.float8_e4m3fn], ids=str)
def test_a_key_or_value_gone_bad_spoils_all_that_see_it(
    items: torch.dtype | None, bad: float, is_value: bool
) -> None:
    """Four tokens, and four that decode behind them; only the second of the first is bad."""
    arena: Arena = torch.zeros(2, 1, 2, BLOCK_SIZE, WIDTH)
    if items is not None:
        units = torch.zeros(2, 1, 128, dtype=torch.uint8)
        arena = QuantizedArena(units, items, BLOCK_SIZE, WIDTH)
    kv = torch.rand(2, 8, 1, WIDTH)
    kv[int(is_value), 1, 0, 3] = bad
    q = torch.rand(8, 1, WIDTH)

    def run(first: int, end: int) -> Tensor:
        sequences = sequences_of([[0, 1]], [(end - first, end)])
        write_kv(kv[0, first:end], kv[1, first:end], arena, sequences)
        return LayerKv.of(arena, q.dtype).attend(q[first:end], sequences)

    out = torch.cat([run(0, 1), run(1, 4), *(run(place, place + 1) for place in range(4, 8))])

    assert out[0].isfinite().all()
    assert out[1:].isnan().any(-1).all()


@by_any
@pytest.mark.usefixtures("path")
def test_a_request_gone_bad_does_not_spoil_the_next_owner_of_its_block() -> None:
    arena = torch.zeros(1, 1, 2, BLOCK_SIZE, WIDTH)
    bad = torch.full((3, 1, WIDTH), torch.nan)
    bad[1] = torch.inf

    def run(kv: torch.Tensor, num_tokens: int) -> torch.Tensor:
        sequences = sequences_of([[0]], [(num_tokens, num_tokens)])
        write_kv(kv, kv, arena, sequences)
        return LayerKv.of(arena, kv.dtype).attend(torch.ones_like(kv), sequences)

    run(bad, 3)
    out = run(torch.ones(1, 1, WIDTH), 1)

    assert torch.equal(out, torch.ones(1, 1, WIDTH))
