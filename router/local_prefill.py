"""Whether the decode replica computes a prompt itself, and why: words for people, or none.

It does if it must, if it lacks no more than a few tokens of it, if there is nobody else; and if
that is clearly sooner than waiting for a prefill replica.
"""

from __future__ import annotations

import math

import numpy as np

from baton.router.eligible import OVERDUE_S
from baton.router.placement import PlacementRequest
from baton.router.prompt import Prompt
from baton.router.replicas.view import PoolView, ReplicaView, View
from baton.router.sources import source_for

CLEARLY = 1.25
"""How many times what computing a prompt here takes, waiting for a prefill replica must take."""

ROUNDED_UP = 1 + 1e-9
"""Sums of the same times in another order differ by less."""


def why_here(
    request: PlacementRequest,
    decode: ReplicaView,
    view: View,
    limit: int,
    *,
    is_beside: bool,
    has_peers: bool,
) -> str:
    """Why `decode` computes the prompt, at once; empty: another should.

    `limit`: it computes itself what it lacks no more of.
    """
    if request.local_because:
        return f"{request.local_because}: computed locally"
    if not has_peers:
        return "no prefill replica: computed locally"
    source = source_for(decode, view, request)
    # The first choice has shown that its prompt is there; events may tell of it later.
    num_held = decode.num_soon_tokens if is_beside else decode.num_cached_tokens
    num_missing = request.num_tokens - max(num_held, source.num_tokens if source else 0)
    if is_beside:
        limit = max(limit, decode.info.layout.block_size)  # what no cache ever holds
    if num_missing > limit:
        return ""
    return f"{num_missing} of {request.num_tokens} tokens uncached: computed locally"


def why_sooner_here(
    prompt: Prompt,
    decode: ReplicaView,
    peers: PoolView,
    view: View,
    now: float,
    at_most_s: float = math.inf,
) -> str:
    """Why `decode` should not wait for a prefill replica; empty: it should.

    Where none of them answers, nobody waits. Computing it here holds up all that decode here, who
    count as much as this request. `at_most_s`: what it takes at one of them.
    """
    here, there = decode.candidate, peers.candidates
    if there.are_all_overdue(now, OVERDUE_S):
        return "all prefill replicas are late: computed locally"
    if not here.speed.is_measured:
        return ""
    work_s = here.speed.prefill_s(prompt.num_tokens, decode.num_cached_tokens)
    here_s = here.busy_s(now) + work_s * (1 + here.num_running)
    if CLEARLY * here_s >= at_most_s * ROUNDED_UP + view.rates.latency_s:
        return ""
    ahead_s, _ = there.ahead(np.full(len(there), prompt.arrived_s))
    works_s = there.prefill_s(prompt.num_tokens, peers.soon)
    there_s = float((there.busy_s(now) + ahead_s + works_s).min()) + view.rates.latency_s
    if CLEARLY * here_s >= there_s:
        return ""
    return (
        f"{here_s:.3f} s here with {here.num_running} held up, {there_s:.3f} s with the wait"
        " for a prefill replica: computed locally"
    )
