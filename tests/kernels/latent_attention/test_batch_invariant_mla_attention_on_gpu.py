"""Latent attention with sums in one order: bits of a token are the same, whatever is beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.kernels.latent_attention.test_mla_attention import (
    ATOL,
    BLOCK_SIZE,
    HEADS,
    LATENT,
    SCALE,
    LatentPass,
    each_dtype,
)
from tests.kernels.passes import sequences_of

from baton.kernels.latent_attention import batch_invariant_mla_attention_gpu as fixed
from baton.kernels.latent_attention.mla_attention_gpu import attend_latents

REQUESTS = [(1, 3), (19, 50), (2, 33)]
SPLIT = 32
"""A multiple of the keys of a tile. One request has one split, the others two."""


def attended(made: LatentPass, parts: list[tuple[int, int, int]], longest: int = 0) -> torch.Tensor:
    """What some tokens attend to: (request, new tokens, context) of each part, in a pass for
    contexts of up to `longest`."""
    firsts = [sum(query_len for query_len, _ in REQUESTS[:row]) for row in range(len(REQUESTS))]
    rows = [
        firsts[row] + context - REQUESTS[row][1] + REQUESTS[row][0] - num + token
        for row, num, context in parts
        for token in range(num)
    ]
    sequences = sequences_of(
        [made.requests[row][0] for row, _, _ in parts],
        [(num, context) for _, num, context in parts],
        block_size=BLOCK_SIZE,
    )
    most = max(longest, sequences.max_context_len)
    q_latent, q_rope = (part[rows] for part in made.queries)
    return fixed.batch_invariant_mla_attention(
        q_latent, q_rope, made.arena, replace(sequences, max_context_len=most), SCALE
    )


@each_dtype
def test_a_token_has_the_same_bits_in_any_batch_and_in_any_chunk(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixed, "SPLIT_KEYS", SPLIT)
    made = LatentPass(REQUESTS, dtype)
    everybody = attended(made, [(row, *lengths) for row, lengths in enumerate(REQUESTS)])
    torch.testing.assert_close(everybody, made.expected(), rtol=0, atol=ATOL[dtype])

    prompt = everybody[1:20]
    chunks = [attended(made, [(1, num, at)]) for num, at in ((15, 46), (4, 50))]
    assert torch.equal(torch.cat(chunks), prompt), "alone and in other chunks"
    decoded = [attended(made, [(1, 1, at), (0, 1, 3)])[:1] for at in (32, 33, 50)]
    assert torch.equal(torch.cat(decoded), prompt[[0, 1, 18]]), "one by one, beside another"
    in_a_graph = attended(made, [(2, 2, 33), (1, 1, 50)], longest=1 << 12)
    assert torch.equal(in_a_graph, everybody[[20, 21, 19]])


def test_partial_results_that_are_too_many_are_made_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fixed, "SPLIT_KEYS", SPLIT)
    made = LatentPass(REQUESTS)
    parts = [(row, *lengths) for row, lengths in enumerate(REQUESTS)]
    at_once = attended(made, parts)
    launched: list[int] = []

    def counted(q_latent: torch.Tensor, *rest: object) -> None:
        launched.append(len(q_latent))
        attend_latents(q_latent, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(fixed, "attend_latents", counted)
    monkeypatch.setattr(fixed, "MAX_PARTIAL_BYTES", 8 * 2 * 4 * HEADS * LATENT)

    assert torch.equal(attended(made, parts), at_once)
    assert launched == [8, 8, 6], "two splits of a token at most"
