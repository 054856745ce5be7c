"""Whether the decode replica computes a prompt itself, and why: the reason in words, or none.

    here     until it is free + work + what the work delays the requests that decode there
    there    until a prefill replica is free + its work + a transfer; for a prompt that need not
             wait also what is left of the handoff after its first token

It does so if it must, or if there is no other replica. It does so if it lacks few tokens and `here`
is no more than `there`, which is not compared before its steps are measured. And it does so,
however many tokens it lacks, if the prompt would wait elsewhere and `here` is clearly less.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from baton.router.eligible import OVERDUE_S
from baton.router.placement import PlacementRequest
from baton.router.prompt import Prompt
from baton.router.replicas.candidate import Candidate
from baton.router.replicas.view import PoolView, ReplicaView, View
from baton.router.sources import source_for

CLEARLY = 1.25
"""How many times what computing a prompt here takes, waiting for a prefill replica must take."""

ROUNDED_UP = 1 + 1e-9
"""Sums of the same times in another order differ by less."""


class Choice(NamedTuple):
    """The replica that decodes, and those that might compute the prompt instead of it."""

    decode: ReplicaView
    is_beside: bool
    """Another choice of the request is there."""
    peers: PoolView
    view: View
    now: float


def why_here(request: PlacementRequest, choice: Choice, limit: int) -> str:
    """Why the decode replica computes the prompt, at once; empty: another should.

    `limit`: of more tokens it does not compute any that a prefill replica could begin with.
    """
    decode, is_beside, peers, view, now = choice
    if request.local_because:
        return f"{request.local_because}: computed locally"
    if not len(peers):
        num_unready = len(view.prefill)
        of_these = f" of {num_unready} takes prompts" if num_unready else ""
        return f"no prefill replica{of_these}: computed locally"
    # The first choice has shown that its prompt is there; cache events may report it later.
    num_held = decode.num_soon_tokens if is_beside else decode.num_cached_tokens
    # The last block is in no cache.
    most_missing = max(limit, decode.info.layout.block_size) if is_beside else limit
    if request.num_tokens - max(num_held, view.most_cached) > most_missing:
        return ""  # as with most: no replica that it could fetch the rest from has more
    source = source_for(decode, view, request)
    num_missing = request.num_tokens - max(num_held, source.num_tokens if source else 0)
    if num_missing > most_missing:
        return ""
    is_last_block = is_beside and num_missing <= decode.info.layout.block_size
    if decode.candidate.speed.is_measured and not is_last_block:
        num_tokens, num_had = request.num_tokens, request.num_tokens - num_missing
        there_s = _there_s(num_tokens, now, now, peers, view) + view.rates.handoff_s
        if here_s(decode.candidate, num_tokens, num_had, now) > there_s:
            return ""
    why = "too few for a handoff (gateway.short_prompt_tokens)"
    if num_missing > limit:
        why = "all in its last block"
    return f"{num_missing} of {request.num_tokens} tokens uncached, {why}: computed locally"


def why_compute_locally(
    prompt: Prompt,
    decode: ReplicaView,
    peers: PoolView,
    view: View,
    now: float,
    at_most_s: float = math.inf,
) -> str:
    """Why `decode` should not wait for a prefill replica; empty: it should.

    If none of them answers, no prompt waits. Computing it here delays all requests that decode
    here, which count as much as this request. `at_most_s`: what it takes at one of them.
    """
    here, there = decode.candidate, peers.candidates
    if there.are_all_overdue(now, OVERDUE_S):
        return "all prefill replicas that could take it are late: computed locally"
    if not here.speed.is_measured:
        return ""
    takes_s = here_s(here, prompt.num_tokens, decode.num_cached_tokens, now)
    if CLEARLY * takes_s >= at_most_s * ROUNDED_UP + view.rates.latency_s:
        return ""
    there_s = _there_s(prompt.num_tokens, prompt.arrived_s, now, peers, view)
    if CLEARLY * takes_s >= there_s:
        return ""
    return (
        f"{takes_s:.3f} s here with {here.num_running} held up, {there_s:.3f} s with the wait"
        " for a prefill replica: computed locally"
    )


def here_s(here: Candidate, num_tokens: int, num_held: int, now: float) -> float:
    """Seconds to the first token where the request decodes, and what others that decode there wait
    for its work: their steps are made anyway, so all of that but the steps."""
    work_s = here.speed.prefill_s(num_tokens, num_held)
    pace = here.speed.pace
    num_steps = math.ceil(max(num_tokens - num_held, 1) / pace.max_chunk) if pace.step_s else 0
    harm_s = here.num_running * max(work_s - num_steps * pace.step_s, 0.0)
    return here.busy_s(now) + work_s + harm_s


def _there_s(num_tokens: int, due_s: float, now: float, peers: PoolView, view: View) -> float:
    """Seconds to the first token by the soonest of the prefill replicas, behind all that waits and
    is due by then."""
    there = peers.candidates
    ahead_s, _ = there.ahead(np.full(len(there), due_s))
    works_s = there.prefill_s(num_tokens, peers.soon)
    return float((there.busy_s(now) + ahead_s + works_s).min()) + view.rates.latency_s
