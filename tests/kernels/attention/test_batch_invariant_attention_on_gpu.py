"""Attention with sums in one order: bits of a token are the same, whatever is beside it."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.paged_passes import Heads, PagedPass
from tests.kernels.passes import sequences_of

from baton.kernels.attention import batch_invariant_attention_gpu as batch_invariant_attention
from baton.kernels.attention import paged_decode_gpu as paged_decode
from baton.kernels.attention.scoring import Scoring
from baton.kernels.attention.scoring_gpu import ScoringRules
from baton.kernels.paging.arena_gpu import PagedCache
from baton.kernels.paging.window import Streaming

SPLIT, HEADS = 32, Heads(2, 1)
REQUESTS = [(1, 3), (19, 50)]
KINDS = [
    pytest.param(
        {"rules": ScoringRules(Scoring(scale=0.9, softcap=0.7), Streaming(20, 3), torch.ones(2))},
        id="first tokens, soft cap and sinks",
    ),
    pytest.param(
        {"items": torch.int8, "dtype": torch.bfloat16, "rules": ScoringRules(window=35)},
        id="window, int8 for bfloat16",
    ),
]


def attended(
    made: PagedPass, parts: list[tuple[int, int, int]], split: int = SPLIT
) -> torch.Tensor:
    """What some tokens attend to: (request, new tokens, context) of each part."""
    firsts = [sum(query_len for query_len, _ in REQUESTS[:row]) for row in range(len(REQUESTS))]
    q = torch.cat(
        [
            made.q[firsts[row] + context - REQUESTS[row][1] + REQUESTS[row][0] - num :][:num]
            for row, num, context in parts
        ]
    )
    sequences = sequences_of(
        [made.tables[row] for row, _, _ in parts],
        [(num, context) for _, num, context in parts],
        block_size=made.block_size,
    )
    rules, cache = made.rules, PagedCache.of(made.arena())
    return batch_invariant_attention.batch_invariant_attention(
        q, cache, sequences, rules.window, rules.scoring, rules.sinks, split_keys=split
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_has_the_same_bits_in_any_batch_and_in_any_chunk(kind: dict[str, object]) -> None:
    made = PagedPass(REQUESTS, heads=HEADS, **kind)  # type: ignore[arg-type]
    everybody = attended(made, [(0, 1, 3), (1, 19, 50)])
    tolerance = 1e-5 if made.dtype is torch.float32 else 3e-2
    torch.testing.assert_close(everybody, made.expected(), rtol=0, atol=tolerance)

    prompt = everybody[1:]
    chunks = [attended(made, [(1, num, at)]) for num, at in ((15, 46), (4, 50))]
    assert torch.equal(torch.cat(chunks), prompt), "alone and in other chunks"
    decoded = [attended(made, [(1, 1, at), (0, 1, 3)])[:1] for at in (32, 50)]
    assert torch.equal(torch.cat(decoded), prompt[[0, 18]]), "one by one, beside another"


def test_first_tokens_are_added_up_alike_wherever_the_window_is() -> None:
    made = PagedPass(REQUESTS, heads=HEADS, rules=ScoringRules(window=Streaming(10, 20)))

    prompt = attended(made, [(1, 19, 50)], split=16)

    assert torch.equal(attended(made, [(1, 4, 50)], split=16), prompt[15:])


def test_partial_results_that_are_too_many_are_made_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = PagedPass(REQUESTS, heads=HEADS)
    parts = [(row, *lengths) for row, lengths in enumerate(REQUESTS)]
    at_once = attended(made, parts)
    launched: list[int] = []
    decode = paged_decode.paged_decode

    def counted(q: torch.Tensor, out: torch.Tensor, *rest: object, **named: object) -> None:
        launched.append(rest[1].num_requests)  # type: ignore[attr-defined]
        decode(q, out, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(batch_invariant_attention, "paged_decode", counted)
    monkeypatch.setattr(batch_invariant_attention, "MAX_PARTIAL_BYTES", 2 * 4 * 16 * 2 * 2 * 8)

    assert torch.equal(attended(made, parts), at_once)
    assert launched == [2, 1], "runs of 16 tokens at most"
