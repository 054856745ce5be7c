"""Both forms of attention to latents against keys and values written out, and which is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from tests.kernels.passes import sequences_of
from torch import Tensor

from baton.kernels.latent_attention import latent_attention as kernel
from baton.kernels.latent_attention.latent_heads import LatentShape, LatentWeights

SMALL = LatentShape(num_heads=3, nope_dim=10, rope_dim=6, value_dim=12, latent_dim=24)
LONG_VALUES = LatentShape(num_heads=2, nope_dim=4, rope_dim=2, value_dim=14, latent_dim=16)
DEEPSEEK = LatentShape(num_heads=128, nope_dim=128, rope_dim=64, value_dim=128, latent_dim=512)
SCALE, BLOCK_SIZE = 0.25, 4
ATOL = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}
Requests = Sequence[tuple[int, int]]
"""(query_len, context_len)"""

each_dtype = pytest.mark.parametrize("dtype", list(ATOL), ids=str)
each_shape = pytest.mark.parametrize("shape", [SMALL, LONG_VALUES], ids=["small", "long values"])


class LatentPass:
    def __init__(self, shape: LatentShape, requests: Requests, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(5)

        def random(*size: int) -> Tensor:
            return torch.randn(size, generator=generator).to(dtype)

        num_blocks = [-(-context // BLOCK_SIZE) for _, context in requests]
        order = torch.randperm(sum(num_blocks), generator=generator)
        self.tables = torch.split(order, num_blocks)
        tokens = sum(query_len for query_len, _ in requests)
        self.shape, self.requests = shape, requests
        self.q = random(tokens, shape.num_heads, shape.query_dim)
        self.q_rope = random(tokens, shape.num_heads, shape.rope_dim)
        self.arena = random(sum(num_blocks), 1, BLOCK_SIZE, shape.cached_dim)
        rows = shape.num_heads * (shape.nope_dim + shape.value_dim)
        self.weight = random(rows, shape.latent_dim) * 0.3
        self.weights = LatentWeights.of(self.weight, shape)
        self.sequences = sequences_of([t.tolist() for t in self.tables], requests)

    def by(self, attend: Callable[..., Tensor]) -> Tensor:
        return attend(self.q, self.q_rope, self.weights, self.arena, self.sequences, SCALE)

    def expected(self) -> Tensor:
        found, start = [], 0
        for table, (query_len, context_len) in zip(self.tables, self.requests, strict=True):
            tokens = slice(start, start + query_len)
            past = self.arena[table, 0].flatten(0, 1)[:context_len]
            args = (self.q[tokens], self.q_rope[tokens], self.weight, self.shape, past, SCALE)
            found.append(kernel.reference(*args))
            start = tokens.stop
        return torch.cat(found)

    def assert_near(self, out: Tensor) -> None:
        torch.testing.assert_close(out, self.expected(), rtol=1e-3, atol=ATOL[self.q.dtype])


@each_dtype
@each_shape
def test_absorbed_it_is_as_defined(shape: LatentShape, dtype: torch.dtype) -> None:
    made = LatentPass(shape, [(1, 9), (5, 5), (1, 1), (3, 20)], dtype)

    made.assert_near(made.by(kernel.absorbed))


@each_dtype
@each_shape
@pytest.mark.parametrize("request_", [(7, 7), (1, 9), (5, 23)], ids=str)
def test_expanded_it_is_as_defined(
    shape: LatentShape, dtype: torch.dtype, request_: tuple[int, int]
) -> None:
    made = LatentPass(shape, [request_], dtype)

    made.assert_near(made.by(kernel.expanded))


def test_heads_are_expanded_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = LatentPass(SMALL, [(6, 14)], torch.float32)
    whole = made.by(kernel.expanded)

    monkeypatch.setattr(kernel, "EXPANDED_BYTES", 1)

    torch.testing.assert_close(made.by(kernel.expanded), whole)


def test_requests_of_one_pass_take_the_form_that_suits_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel, "MIN_EXPANDED", 4)
    monkeypatch.setattr(kernel, "WORK_PER_BYTE", 0)
    requests = [(1, 9), (3, 3), (6, 6), (9, 12), (1, 1), (4, 30)]
    made = LatentPass(SMALL, requests, torch.float32)
    forms = [kernel.is_expanded_cheaper(SMALL, q, c, 4) for q, c in requests]
    assert forms == [False, False, True, True, False, False]

    made.assert_near(made.by(kernel.latent_attention))


def test_a_pass_without_long_chunks_does_not_ask_for_lengths() -> None:
    """It may be on a tape, or in a graph."""
    made = LatentPass(SMALL, [(1, 9), (7, 7)], torch.float32)

    made.by(kernel.latent_attention)

    assert not made.sequences._lengths


def test_tokens_are_decoded_absorbed_and_whole_prompts_expanded() -> None:
    for context in (64, 1000, 100_000):
        assert not kernel.is_expanded_cheaper(DEEPSEEK, 1, context, 2)
        assert not kernel.is_expanded_cheaper(DEEPSEEK, 63, context, 2)
    for length in (1000, 4000, 32_000):
        assert kernel.is_expanded_cheaper(DEEPSEEK, length, length, 2)


def test_a_short_chunk_of_a_long_prompt_is_absorbed_and_a_long_one_expanded() -> None:
    assert not kernel.is_expanded_cheaper(DEEPSEEK, 128, 32_000, 2)
    assert kernel.is_expanded_cheaper(DEEPSEEK, 512, 32_000, 2)


def test_the_choice_is_that_of_fewer_multiplications_where_memory_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel, "WORK_PER_BYTE", 0)
    shape = LatentShape(num_heads=1, nope_dim=1, rope_dim=1, value_dim=1, latent_dim=8)
    # 64 new tokens of 64: 2080 pairs; absorbed 2080 * 17 + 64 * 16, expanded 2080 * 3 + 64 * 16
    assert kernel.is_expanded_cheaper(shape, 64, 64, 4)
    # of a context so long that making its keys and values outweighs: 16 a token against 14 a pair
    few = LatentShape(num_heads=1, nope_dim=9, rope_dim=1, value_dim=9, latent_dim=1000)
    context = 10_000
    pairs = 64 * context - 64 * 63 // 2
    absorbed = pairs * 2001 + 64 * 18_000
    expanded = pairs * 19 + context * 18_000
    assert kernel.is_expanded_cheaper(few, 64, context, 4) is (expanded < absorbed)
