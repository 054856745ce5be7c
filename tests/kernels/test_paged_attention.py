"""Attention over blocks against its definition, token by token and head by head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kernels import paged_attention as kernel

NUM_BLOCKS, BLOCK_SIZE, WIDTH = 64, 4, 8


@dataclass(frozen=True)
class Heads:
    query: int
    kv: int


def attend(
    requests: Sequence[tuple[int, int]], heads: Heads, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Requests of (query_len, context_len) in scrambled blocks, by the kernel and its definition.

    Returns both outputs, then both arenas.
    """
    generator = torch.Generator().manual_seed(7)
    num_tokens = sum(query_len for query_len, _ in requests)
    arena = torch.randn(NUM_BLOCKS, heads.kv, 2, BLOCK_SIZE, WIDTH, generator=generator).to(dtype)
    q = torch.randn(num_tokens, heads.query, WIDTH, generator=generator).to(dtype)
    k, v = torch.randn(2, num_tokens, heads.kv, WIDTH, generator=generator).to(dtype)
    order = iter(torch.randperm(NUM_BLOCKS, generator=generator).tolist())
    tables = [[next(order) for _ in range(-(-c // BLOCK_SIZE))] for _, c in requests]
    expected_arena = arena.clone()
    expected = kernel.reference(
        q, k, v, expected_arena, [(t, *r) for t, r in zip(tables, requests, strict=True)]
    )
    plan = kernel.plan_attention(
        torch.nn.utils.rnn.pad_sequence([torch.tensor(t) for t in tables], batch_first=True),
        [query_len for query_len, _ in requests],
        [context_len for _, context_len in requests],
        torch.cat([torch.arange(c - n, c) for n, c in requests]),
        arena_shape(arena),
    )
    return kernel.paged_attention(q, k, v, arena, plan), expected, arena, expected_arena


def arena_shape(arena: torch.Tensor) -> kernel.ArenaShape:
    return kernel.ArenaShape(
        num_kv_heads=arena.shape[1],
        block_size=arena.shape[3],
        row_bytes=arena.shape[3] * arena.shape[4] * arena.element_size(),
        dtype=arena.dtype,
    )


@pytest.mark.parametrize("heads", [Heads(4, 4), Heads(4, 2), Heads(4, 1), Heads(1, 1)])
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
def test_attention_is_as_defined(requests: list[tuple[int, int]], heads: Heads) -> None:
    out, expected, arena, expected_arena = attend(requests, heads)

    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)
    assert torch.equal(arena, expected_arena)


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 20)).map(lambda r: (r[0], r[0] + r[1])),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=40, deadline=None)
def test_attention_is_as_defined_for_any_mixture(requests: list[tuple[int, int]]) -> None:
    out, expected, arena, expected_arena = attend(requests, Heads(2, 1))

    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)
    assert torch.equal(arena, expected_arena)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
def test_half_precision_is_near(dtype: torch.dtype, atol: float) -> None:
    out, expected, _, _ = attend([(1, 19), (6, 6), (5, 12)], Heads(4, 2), dtype)

    assert out.dtype is dtype
    torch.testing.assert_close(out, expected, rtol=0, atol=atol)


def test_many_long_requests_are_attended_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    block_bytes = 2 * 2 * BLOCK_SIZE * WIDTH * 4
    monkeypatch.setattr(kernel, "GATHER_BYTES", 6 * block_bytes)

    out, expected, _, _ = attend([(1, 40), (1, 2), (1, 11), (1, 10), (1, 12), (1, 1)], Heads(4, 2))

    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)


def test_a_long_chunk_is_cut_and_still_sees_its_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "MASK_ITEMS", 100)

    out, expected, _, _ = attend([(20, 33), (1, 3)], Heads(4, 2))

    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)


def test_groups_hold_requests_of_like_length_within_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = kernel.ArenaShape(num_kv_heads=1, block_size=1, row_bytes=1, dtype=torch.float32)
    monkeypatch.setattr(kernel, "GATHER_BYTES", 40)

    groups = list(kernel._split([0, 1, 2, 3, 4], [10, 3, 30, 3, 9], shape))

    assert groups == [[2], [0, 4], [1, 3]]


def test_a_request_gone_bad_does_not_spoil_the_next_owner_of_its_block() -> None:
    arena = torch.zeros(1, 1, 2, BLOCK_SIZE, WIDTH)
    bad = torch.full((3, 1, WIDTH), torch.nan)
    bad[1] = torch.inf

    def run(kv: torch.Tensor, num_tokens: int) -> torch.Tensor:
        plan = kernel.plan_attention(
            torch.tensor([[0]]),
            [num_tokens],
            [num_tokens],
            torch.arange(num_tokens),
            arena_shape(arena),
        )
        return kernel.paged_attention(torch.ones_like(kv), kv, kv, arena, plan)

    run(bad, 3)
    out = run(torch.ones(1, 1, WIDTH), 1)

    assert torch.equal(out, torch.ones(1, 1, WIDTH))
