"""The index of sparse attention: what it keeps, and what it chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.kernels.passes import sequences_of
from tests.torch_threads import threads
from torch import Tensor

from baton.kernels.cache_write import index_write as writing
from baton.kernels.cache_write.index_write import index_write
from baton.kernels.cpu.operators import runs
from baton.kernels.latent_attention import choose_tokens as choosing
from baton.kernels.latent_attention import choose_tokens_gpu as gpu_choosing
from baton.kernels.latent_attention.choose_tokens import Chosen, choose_tokens
from baton.kernels.paging.sequences import Sequences

HEADS, WIDTH, ROTATED, BLOCK_SIZE = 5, 20, 6, 4
REQUESTS = [(1, 5), (6, 6), (3, 37), (1, 1)]
Choose = Callable[[Tensor, Tensor, Tensor, Sequences, int], Chosen]

compiled = pytest.mark.skipif(not runs(torch.zeros(1)), reason="there is no C++ compiler")
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
each_order = pytest.mark.parametrize("is_interleaved", [True, False], ids=["neighbours", "halves"])


def choose_as_a_gpu(*inputs: Any) -> Chosen:
    return Chosen(*gpu_choosing.choose_tokens(*inputs))


@pytest.fixture(params=[1, 4])
def on_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    with threads(request.param):
        yield


@dataclass(frozen=True)
class IndexPass:
    q: Tensor
    weights: Tensor
    keys: Tensor
    """An arena."""
    sequences: Sequences

    def chosen(self, num_chosen: int, choose: Choose = choose_tokens) -> list[list[int]]:
        found = choose(self.q, self.weights, self.keys, self.sequences, num_chosen)
        rows = zip(found.slots.tolist(), found.counts.tolist(), strict=True)
        return [row[:count] for row, count in rows]

    def slots_of(self, request: int) -> list[int]:
        context = int(self.sequences.context_lens[request])
        table = self.sequences.block_tables[request].tolist()
        size = self.sequences.block_size
        return [table[place // size] * size + place % size for place in range(context)]


def index_pass(
    requests: Sequence[tuple[int, int]] = REQUESTS,
    dtype: torch.dtype = torch.float32,
    *,
    heads: int = HEADS,
    width: int = WIDTH,
) -> IndexPass:
    generator = torch.Generator().manual_seed(5)
    num_blocks = [-(-context // BLOCK_SIZE) for _, context in requests]
    tables = torch.split(torch.randperm(sum(num_blocks), generator=generator), num_blocks)
    tokens = sum(query_len for query_len, _ in requests)
    shape = sum(num_blocks), 1, BLOCK_SIZE, width
    return IndexPass(
        q=torch.randn(tokens, heads, width, generator=generator).to(dtype),
        weights=torch.randn(tokens, heads, generator=generator),
        keys=torch.randn(shape, generator=generator).to(dtype),
        sequences=sequences_of([t.tolist() for t in tables], requests, block_size=BLOCK_SIZE),
    )


def token_alone(made: IndexPass, request: int, token: int, position: int) -> IndexPass:
    """The pass of one token, at `position` of that request."""
    table = made.sequences.block_tables[request].tolist()
    alone = sequences_of([table], [(1, position + 1)], block_size=BLOCK_SIZE)
    rows = slice(token, token + 1)
    return replace(made, q=made.q[rows], weights=made.weights[rows], sequences=alone)


@compiled
@each_dtype
@each_order
def test_keys_are_rotated_and_kept_as_defined(dtype: torch.dtype, is_interleaved: bool) -> None:
    made = index_pass(dtype=dtype)
    tokens = len(made.q)
    k = torch.randn(tokens, WIDTH).to(dtype)
    k[2, ROTATED + 1] = torch.nan
    angles = torch.randn(tokens, ROTATED // 2)
    arenas = torch.zeros(2, *made.keys.shape, dtype=dtype)

    found = [
        write(
            made.q,
            k,
            arena,
            made.sequences,
            rotation=(angles.cos(), angles.sin()),
            is_interleaved=is_interleaved,
        )
        for write, arena in zip((index_write, writing.reference), arenas, strict=True)
    ]

    torch.testing.assert_close(*found)
    torch.testing.assert_close(*arenas, equal_nan=True)
    assert torch.equal(found[0][..., ROTATED:], made.q[..., ROTATED:])
    assert int(arenas[0].isnan().sum()) == 1 and int(arenas[0].any(-1).sum()) == tokens


@compiled
@pytest.mark.usefixtures("on_threads")
@each_dtype
@pytest.mark.parametrize("num_chosen", [1, 4, 7, 40])
@pytest.mark.parametrize("heads", [1, 5, 32, 70])
def test_the_same_tokens_are_chosen_as_by_the_definition(
    dtype: torch.dtype, num_chosen: int, heads: int
) -> None:
    made = index_pass(dtype=dtype, heads=heads)
    made = replace(made, weights=made.weights.abs() + 0.1)  # else many are as bad as each other

    assert made.chosen(num_chosen) == made.chosen(num_chosen, choosing.reference)


@pytest.mark.parametrize(
    "choose", [pytest.param(choose_tokens, marks=compiled), choosing.reference]
)
def test_of_tokens_with_equal_scores_the_earlier_are_chosen(choose: Choose) -> None:
    made = index_pass([(2, 30)])
    made.keys[:] = 1.0

    first, second = made.chosen(6, choose)

    assert first == second == made.slots_of(0)[:6]


@pytest.mark.parametrize(
    "choose", [pytest.param(choose_tokens, marks=compiled), choosing.reference]
)
def test_who_sees_no_more_than_are_chosen_takes_all(choose: Choose) -> None:
    made = index_pass([(9, 9)])

    assert made.chosen(9, choose) == [made.slots_of(0)[: place + 1] for place in range(9)]


@pytest.mark.parametrize(
    "choose",
    [pytest.param(choose_tokens, marks=compiled), choosing.reference, choose_as_a_gpu],
)
def test_a_key_that_is_no_number_is_chosen_last(choose: Choose) -> None:
    made = index_pass([(1, 20)], heads=20)
    made = replace(made, weights=-made.weights.abs())  # whatever fits a query is below 0
    slots = made.slots_of(0)
    made.keys.view(-1, WIDTH)[slots[:17]] = torch.nan

    assert made.chosen(5, choose) == [[*slots[:2], *slots[17:]]]


@compiled
@pytest.mark.usefixtures("on_threads")
@each_dtype
def test_a_token_chooses_the_same_whatever_is_computed_beside_it(dtype: torch.dtype) -> None:
    requests = [(3, 700), (40, 1300), (1, 5)]
    made = index_pass(requests, dtype, heads=20)
    together, token = made.chosen(64), 0

    assert together == made.chosen(64, choosing.reference)
    for request, (query_len, context_len) in enumerate(requests):
        for place in range(query_len):
            position = context_len - query_len + place
            alone = token_alone(made, request, token, position)
            assert alone.chosen(64) == [together[token]]
            token += 1


def test_torch_scores_a_few_tokens_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = index_pass()
    expected = made.chosen(4, choosing.reference)

    monkeypatch.setattr(choosing, "SCORE_ITEMS", 2 * HEADS * 37)

    assert made.chosen(4, choosing.reference) == expected


@each_dtype
@pytest.mark.parametrize("num_chosen", [1, 7, 40])
@pytest.mark.parametrize("heads", [1, 5, 70])
def test_the_kernel_of_the_gpu_chooses_the_same(
    dtype: torch.dtype, num_chosen: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_choosing, "SCORE_BYTES", 4 * 37 * 2)  # two tokens at a time
    made = index_pass(dtype=dtype, heads=heads)
    made = replace(made, weights=made.weights.abs() + 0.1)

    assert made.chosen(num_chosen, choose_as_a_gpu) == made.chosen(num_chosen, choosing.reference)


def test_queries_and_keys_that_do_not_fit_are_refused() -> None:
    made = index_pass()

    with pytest.raises(ValueError, match="do not fit"):
        choose_tokens(made.q, made.weights.double(), made.keys, made.sequences, 4)
    with pytest.raises(ValueError, match="shapes do not fit"):
        index_write(
            made.q,
            made.q[:, 0, 1:],
            made.keys,
            made.sequences,
            rotation=(torch.ones(len(made.q), 3),) * 2,
            is_interleaved=False,
        )
