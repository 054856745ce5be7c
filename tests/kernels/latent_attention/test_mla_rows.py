"""A row of compiled latent attention has the same bits, whatever is computed beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.passes import sequences_of
from tests.torch_threads import threads
from torch import Tensor

from baton.kernels.cpu.operators import Pass, runs
from baton.kernels.cpu.tape import NUM_OUTPUTS, NUM_TOKENS, Recorder
from baton.kernels.latent_attention.mla_attention import mla_attention, reference

pytestmark = pytest.mark.skipif(not runs(torch.zeros(1)), reason="there is no C++ compiler")

DTYPES = [torch.float32, torch.bfloat16]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
SPLIT = 512
"""Keys of a segment, which is what threads share a long context by."""
SCALE = 0.2


@dataclass(frozen=True)
class Latents:
    heads: int = 5
    latent: int = 32
    rotated: int = 16
    block_size: int = 16

    def filled_arena(self, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Arena and table of a request."""
        num_blocks = -(-length // self.block_size)
        shape = num_blocks, 1, self.block_size, self.latent + self.rotated
        return torch.randn(shape).to(dtype), torch.randperm(num_blocks)

    def attend(self, q: Tensor, arena: Tensor, table: Tensor, context_len: int) -> Tensor:
        """The last tokens of one request."""
        return self.attend_all([q], arena, table, [context_len])

    def attend_all(
        self, qs: Sequence[Tensor], arena: Tensor, table: Tensor, ends: Sequence[int]
    ) -> Tensor:
        requests = [(len(q), end) for q, end in zip(qs, ends, strict=True)]
        tables = [table.tolist()] * len(qs)
        sequences = sequences_of(tables, requests, block_size=self.block_size)
        q_latent, q_rope = torch.split(torch.cat(list(qs)), [self.latent, self.rotated], dim=-1)
        return mla_attention(q_latent, q_rope, arena, sequences, SCALE)


LAYERS = [
    pytest.param(Latents(), id="few heads"),
    pytest.param(Latents(heads=1), id="one head"),
    pytest.param(Latents(heads=16, latent=512, rotated=64), id="DeepSeek-V2-Lite"),
    pytest.param(Latents(heads=80), id="more heads than a tile has rows"),
    pytest.param(Latents(latent=12, rotated=6, block_size=5), id="odd width, odd blocks"),
]


def given_prompt(layer: Latents, dtype: torch.dtype, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, arena and table of a request."""
    torch.manual_seed(length)
    q = torch.randn(length, layer.heads, layer.latent + layer.rotated).to(dtype)
    return q, *layer.filled_arena(length, dtype)


def on_threads(num_threads: int, attend: Callable[[], Tensor]) -> Tensor:
    with threads(num_threads):
        return attend()


@pytest.mark.parametrize("layer", LAYERS)
@each_dtype
def test_decoded_alone_as_in_the_middle_of_a_prompt(layer: Latents, dtype: torch.dtype) -> None:
    q, arena, table = given_prompt(layer, dtype, 530)

    whole = layer.attend(q, arena, table, len(q))

    for place in (0, 1, 15, 63, 64, 300, SPLIT - 1, SPLIT, len(q) - 1):
        alone = layer.attend(q[place : place + 1], arena, table, place + 1)
        assert torch.equal(alone[0], whole[place])


@given(
    st.lists(st.integers(1, 90), min_size=1, max_size=6),
    st.sampled_from(DTYPES),
    st.sampled_from([1, 3, 16, 20]),
)
@settings(max_examples=20, deadline=None)
def test_in_chunks_of_any_size_as_in_one(chunks: list[int], dtype: torch.dtype, heads: int) -> None:
    layer = Latents(heads)
    q, arena, table = given_prompt(layer, dtype, sum(chunks))

    whole = layer.attend(q, arena, table, len(q))

    done = 0
    for size in chunks:
        part = layer.attend(q[done : done + size], arena, table, done + size)
        assert torch.equal(part, whole[done : done + size])
        done += size


@pytest.mark.parametrize("layer", LAYERS)
@each_dtype
def test_requests_shared_by_threads_as_each_by_one(layer: Latents, dtype: torch.dtype) -> None:
    ends = [5 * SPLIT + 3, 1, SPLIT - 1, SPLIT, SPLIT + 1]
    q, arena, table = given_prompt(layer, dtype, max(ends))
    qs = [q[end - n : end] for end, n in zip(ends, (1, 1, 70, 1, 3), strict=True)]

    alone = [
        on_threads(1, lambda: layer.attend(part, arena, table, end))  # noqa: B023
        for part, end in zip(qs, ends, strict=True)
    ]

    for num_threads in range(2, 9):
        shared = on_threads(num_threads, lambda: layer.attend_all(qs, arena, table, ends))
        assert torch.equal(shared, torch.cat(alone))


@pytest.mark.parametrize("layer", LAYERS)
@each_dtype
def test_a_long_context_is_as_defined(layer: Latents, dtype: torch.dtype) -> None:
    q, arena, table = given_prompt(layer, dtype, 2 * SPLIT + 5)

    out = on_threads(4, lambda: layer.attend(q[-2:], arena, table, len(q)))

    q_latent, q_rope = torch.split(q[-2:], [layer.latent, layer.rotated], dim=-1)
    expected = reference(q_latent, q_rope, arena, [(table.tolist(), 2, len(q))], SCALE)
    atol = 1e-5 if dtype is torch.float32 else 4e-3
    torch.testing.assert_close(out, expected, rtol=2**-7, atol=atol)


@each_dtype
def test_a_query_gone_bad_spoils_itself_alone(dtype: torch.dtype) -> None:
    layer = Latents()
    q, arena, table = given_prompt(layer, dtype, 80)
    good = layer.attend(q, arena, table, 80)
    q[40, 1] = torch.nan

    out = layer.attend(q, arena, table, 80)

    assert out[40, 1].isnan().all()
    out[40, 1] = good[40, 1]
    assert torch.equal(out, good)


def test_a_tape_plays_it_for_passes_of_any_size() -> None:
    layer, limit = Latents(), 40
    q, arena, table = given_prompt(layer, torch.float32, limit)
    sequences = sequences_of([table.tolist()], [(limit, limit)], block_size=layer.block_size)

    def attend(num_tokens: int) -> Tensor:
        """The last of 30, which lie first in q."""
        sequences.query_starts[1], sequences.context_lens[0] = num_tokens, 30
        q_latent, q_rope = torch.split(q[:num_tokens], [layer.latent, layer.rotated], dim=-1)
        return mla_attention(q_latent, q_rope, arena, sequences, SCALE)

    with Recorder() as recorder:
        recorded = attend(NUM_TOKENS)
    tape = recorder.tape(recorded, max_tokens=limit, max_outputs=NUM_OUTPUTS)

    for num_tokens in (1, NUM_TOKENS, 30):
        expected = attend(num_tokens)
        tape.play(Pass(num_tokens=num_tokens, num_requests=1))
        assert torch.equal(tape.result[:num_tokens], expected)
