"""Latent attention against its definition, and against the heads that it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tests.kernels.passes import sequences_of
from torch import Tensor
from torch.nn import functional

from baton.kernels.cpu.operators import runs
from baton.kernels.latent_attention import mla_attention as kernel
from baton.kernels.latent_attention import mla_attention_cpu as compiled
from baton.kernels.latent_attention import mla_attention_gpu as gpu
from baton.kernels.paging.paged_rows import write_rows
from baton.kernels.paging.sequences import Sequences

BLOCK_SIZE, HEADS, LATENT, ROTATED = 4, 3, 12, 6
SCALE = 0.3
ATOL = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
Requests = Sequence[tuple[int, int]]

PASSES = [
    pytest.param([(1, 9), (1, 1), (1, 40)], id="decoding"),
    pytest.param([(7, 7)], id="a whole prompt"),
    pytest.param([(1, 5), (6, 11), (2, 2)], id="everything at once"),
    pytest.param([(1, 33), (5, 70), (9, 40), (2, 2)], id="drafts"),
]
each_pass = pytest.mark.parametrize("requests", PASSES)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
by_any = pytest.mark.parametrize("path", ["compiled", "torch"], indirect=True)


@pytest.fixture
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is no compiler."""
    monkeypatch.setattr(compiled, "runs", lambda q_latent, arena: False)


@pytest.fixture
def path(request: pytest.FixtureRequest) -> None:
    if request.param == "torch":
        request.getfixturevalue("torch_alone")
    elif not runs(torch.zeros(1)):
        pytest.skip("there is no C++ compiler")


class LatentPass:
    """Slots that no token has hold NaN, and tables go on with blocks that do not exist."""

    def __init__(self, requests: Requests, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(3)
        num_blocks = sum(-(-context // BLOCK_SIZE) for _, context in requests)
        order = iter(torch.randperm(num_blocks, generator=generator).tolist())
        tables = [[next(order) for _ in range(-(-c // BLOCK_SIZE))] for _, c in requests]
        num_tokens = sum(query_len for query_len, _ in requests)
        shape = num_tokens, HEADS, LATENT + ROTATED
        self.q = torch.randn(shape, generator=generator).to(dtype)
        places = num_blocks, 1, BLOCK_SIZE, LATENT + ROTATED
        self.arena = torch.randn(places, generator=generator).to(dtype)
        self.requests = [(table, *r) for table, r in zip(tables, requests, strict=True)]
        for table, _, context_len in self.requests:
            used = context_len - (len(table) - 1) * BLOCK_SIZE
            self.arena[table[-1], :, used:] = torch.nan
        self.sequences = sequences_of(tables, requests, block_size=BLOCK_SIZE)
        for row, table in zip(self.sequences.block_tables, tables, strict=True):
            row[len(table) :] = 1 << 40

    @property
    def queries(self) -> tuple[Tensor, Tensor]:
        return self.q[..., :LATENT], self.q[..., LATENT:]

    def expected(self) -> Tensor:
        return kernel.reference(*self.queries, self.arena, self.requests, SCALE)


@by_any
@pytest.mark.usefixtures("path")
@each_pass
@each_dtype
def test_it_is_as_defined(requests: Requests, dtype: torch.dtype) -> None:
    made = LatentPass(requests, dtype)

    out = kernel.mla_attention(*made.queries, made.arena, made.sequences, SCALE)

    torch.testing.assert_close(out, made.expected(), rtol=0, atol=ATOL[dtype])


@pytest.mark.usefixtures("torch_alone")
def test_a_long_chunk_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "SCORE_ITEMS", 70)
    made = LatentPass([(9, 20), (1, 3)])

    out = kernel.mla_attention(*made.queries, made.arena, made.sequences, SCALE)

    torch.testing.assert_close(out, made.expected(), rtol=0, atol=1e-5)


def test_it_stands_for_heads_with_keys_and_values_of_their_own() -> None:
    made, width = LatentPass([(7, 7)]), 5
    q_nope, q_rope = torch.randn(7, HEADS, width), torch.randn(7, HEADS, ROTATED)
    up_k, up_v = torch.randn(2, HEADS, width, LATENT)
    table = made.requests[0][0]
    past = made.arena[table, 0].flatten(0, 1)[:7]
    latents, rotated = past[:, :LATENT], past[:, LATENT:]
    k = torch.cat(
        (torch.einsum("tl,nhl->nth", latents, up_k), rotated.expand(HEADS, -1, -1)), dim=-1
    )
    v = torch.einsum("tl,nhl->nth", latents, up_v)
    q = torch.cat((q_nope, q_rope), dim=-1).transpose(0, 1)
    expected = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE)

    q_latent = torch.einsum("tnh,nhl->tnl", q_nope, up_k)
    out = kernel.mla_attention(q_latent, q_rope, made.arena, made.sequences, SCALE)

    found = torch.einsum("tnl,nhl->nth", out, up_v)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_latents_are_written_where_the_tables_say() -> None:
    made = LatentPass([(3, 9), (1, 4)])
    latent, rope = torch.ones(4, LATENT), 2 * torch.ones(4, ROTATED)
    latent[0, 3] = -torch.inf
    arena = torch.zeros_like(made.arena)

    write_rows(torch.cat((latent, rope), dim=-1), arena, made.sequences)

    (table, _, _), (other, _, _) = made.requests
    expected = torch.zeros_like(arena)
    for token, (block, slot) in enumerate(
        [(table[1], 2), (table[1], 3), (table[2], 0), (other[0], 3)]
    ):
        expected[block, 0, slot] = torch.cat((latent[token], rope[token]))
    expected[expected.isinf()] = torch.nan
    torch.testing.assert_close(arena, expected, rtol=0, atol=0, equal_nan=True)


@each_pass
@each_dtype
@pytest.mark.parametrize("min_split_keys", [16, 256], ids=["split", "whole"])
def test_the_kernel_of_the_gpu_is_as_defined(
    requests: Requests, dtype: torch.dtype, min_split_keys: int
) -> None:
    made = LatentPass(requests, dtype)

    out = gpu.mla_attention(*made.queries, made.arena, made.sequences, SCALE, min_split_keys)

    torch.testing.assert_close(out, made.expected(), rtol=0, atol=ATOL[dtype])


@pytest.mark.parametrize("programs", [6, 11])
def test_splits_follow_from_the_contexts_that_there_are(
    programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = LatentPass([(1, 90), (1, 4), (2, 33), (1, 1)])
    as_in_a_graph = replace(made.sequences, max_context_len=1 << 17)
    monkeypatch.setattr(gpu, "ENOUGH_PROGRAMS", programs)

    out = gpu.mla_attention(*made.queries, made.arena, as_in_a_graph, SCALE, 16)

    torch.testing.assert_close(out, made.expected(), rtol=0, atol=ATOL[torch.float32])


def test_kernels_of_few_sizes_have_room_for_all_numbers_of_tokens() -> None:
    rooms = [gpu.room_for(num_tokens) for num_tokens in range(1, gpu.ENOUGH_PROGRAMS + 1)]

    assert all(room >= num for num, room in enumerate(rooms, start=1))
    assert len(set(rooms)) <= 3


@pytest.mark.gpu
@each_pass
@each_dtype
def test_on_a_device_it_is_as_defined(requests: Requests, dtype: torch.dtype) -> None:
    made = LatentPass(requests, dtype)
    q_latent, q_rope = (q.cuda() for q in made.queries)

    out = kernel.mla_attention(
        q_latent, q_rope, made.arena.cuda(), on_device(made.sequences), SCALE
    )

    torch.testing.assert_close(out.cpu(), made.expected(), rtol=0, atol=ATOL[dtype])


def on_device(sequences: Sequences) -> Sequences:
    names = ("positions", "query_starts", "context_lens", "block_tables")
    return replace(sequences, **{name: getattr(sequences, name).cuda() for name in names})
