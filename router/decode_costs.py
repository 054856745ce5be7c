"""The cost of decoding a request on each replica, in seconds, and the choice of the least.

    cost = queued + silent + decode + harm + blocks + lacks + late

    queued    until the replica has computed what is queued there, of any gateway, at its own speed
    silent    the replica has work and should have reported: as long as it has been overdue
    decode    the request's own tokens: expected output x a step with it in, by its own step times
    harm      the longer steps of the requests that decode there, in all of the request's steps
    blocks    if free blocks do not suffice for prompt and output: what it must compute again, and
              its share of the time until others have ended
    lacks     to compute the uncached part of the prompt, at the pool's rate, on whatever replica
    late      for a request with an objective: by how much its tokens would be late in all, and from
              a quarter of what is allowed on all of that (`fairness/slo.py`)

A step of n requests takes constant + n x request + context tokens x context, times the replica's
recent slowness (`core/step_times.py`), so a replica that becomes slow is avoided long before it is
dead. While no replica has measured steps, a decoding request counts as eight tokens to compute.

Compiled if the library is available (`kernels/cpu/source/routing/choices.cpp`), with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from baton.core.replicas import HEARTBEAT_S
from baton.kernels.cpu.library import library_without_torch
from baton.kernels.routing import choices_cpu as compiled
from baton.router.fairness.slo import STEEPNESS, late_cost_s
from baton.router.placement import PlacementRequest
from baton.router.policies.routing_policy import least_by
from baton.router.replicas.candidate import LATE_S
from baton.router.replicas.view import PoolView
from baton.router.table.columns import Numbers
from baton.router.table.decode_columns import DecodeFact, UsualStep

TERMS = ("queued_s", "silent_s", "decode_s", "harm_s", "blocks_s", "lacks_s", "late_s")
RUNNING_REQUEST_COST = 8.0
"""Tokens to compute, as which a request counts that decodes, while no steps are measured: half of
them for what it takes of a new one's steps, half for what that takes of its own."""
PATIENCE_S = 2 * HEARTBEAT_S
"""A replica with something to do reports each heartbeat: one that has not for two is overdue."""


class AskedToDecode(NamedTuple):
    """One request, and what is the same for all replicas."""

    now: float
    num_tokens: float
    """Tokens of the prompt."""
    num_output: float
    """Expected output tokens, at least one."""
    itl_s: float
    """Seconds a token that its objective allows; infinite: it has none."""
    tokens_per_s: float
    """Prefill rate of the pool, in prompt tokens a second."""
    patience_s: float
    usual: UsualStep
    """Step times assumed for replicas that have measured none."""


def asked_to_decode(
    replicas: PoolView,
    now: float,
    request: PlacementRequest,
    num_output: float,
    tokens_per_s: float,
) -> AskedToDecode:
    usual = replicas.pool.decoding.usual
    if usual is None:
        request_s = RUNNING_REQUEST_COST / (2.0 * tokens_per_s * num_output)
        usual = UsualStep(0.0, request_s, 0.0)
    return AskedToDecode(
        *(now, request.num_tokens, num_output, request.itl_s, tokens_per_s, PATIENCE_S, usual)
    )


class Cheapest(NamedTuple):
    """The replicas where it costs least, the least first."""

    order: Sequence[int]
    """Their places."""
    terms: Numbers
    """[term, found]: those of `TERMS`, and their sum."""
    num_held: Numbers
    """Leading tokens of the prompt that each has or will have."""


def least_to_decode(asked: AskedToDecode, replicas: PoolView, draw: int, num: int) -> Cheapest:
    """The `num` where it costs least, or all if they are fewer; equals are drawn by `draw`."""
    num = min(num, len(replicas))
    found = library_without_torch()
    if found is None:
        terms = reference(asked, replicas)
        least = list(least_by(draw, replicas.candidates, terms[-1], num))
        return Cheapest(least, terms.take(least, axis=1), replicas.soon.take(least))
    reported = np.empty((len(TERMS) + 2, num))
    now, *rest = asked[:-1]
    pool = replicas.pool
    columns = pool.candidates.columns
    order = compiled.least_to_decode(
        found,
        (now, LATE_S, STEEPNESS, *rest, *asked.usual),
        compiled.Decoders(
            *(columns.rows, pool.decoding.rows, replicas.cached, replicas.expected),
            *(columns.draws_address, replicas.places),
        ),
        draw,
        reported,
    )
    return Cheapest(order, reported[:-1], reported[-1])


def reference(asked: AskedToDecode, replicas: PoolView) -> Numbers:
    """The definition: [term, place], those of `TERMS` and their sum."""
    terms = np.empty((len(TERMS) + 1, len(replicas)))
    queued_s, silent_s, decode_s, harm_s, blocks_s, lacks_s, late_s, total_s = terms
    facts, busy_s = replicas.pool.decoding.numbers, replicas.pool.candidates.busy_s(asked.now)
    if replicas.places is not None:
        facts, busy_s = facts[:, replicas.places], busy_s[replicas.places]
    num, since, context = facts[: DecodeFact.CONSTANT_S]
    steps = facts[DecodeFact.CONSTANT_S : DecodeFact.FREE_TOKENS]
    constant_s, request_s, context_s = (
        np.where(np.isnan(its), usual, its) for its, usual in zip(steps, asked.usual, strict=True)
    )
    length = asked.num_tokens + asked.num_output / 2.0
    step_s = constant_s + (num + 1.0) * request_s + (context + (since + 1.0) * length) * context_s
    queued_s[:] = busy_s
    overdue_s = asked.now - facts[DecodeFact.RECEIVED_AT_S] - asked.patience_s
    np.maximum(overdue_s, 0.0, out=silent_s)
    np.multiply(step_s, asked.num_output, out=decode_s)
    np.multiply(num * asked.num_output, request_s + length * context_s, out=harm_s)
    wanted = (since + 1.0) * (asked.num_tokens + asked.num_output)
    lack = np.maximum(wanted - facts[DecodeFact.FREE_TOKENS], 0.0)
    blocks_s[:] = lack / asked.tokens_per_s + lack / facts[DecodeFact.USED_TOKENS] * decode_s
    lacks_s[:] = np.maximum(asked.num_tokens - replicas.soon, 0.0) / asked.tokens_per_s
    over_s = np.maximum(step_s - asked.itl_s, 0.0) * asked.num_output
    late_s[:] = late_cost_s(over_s, asked.itl_s * asked.num_output)
    np.add.reduce(terms[:-1], out=total_s)
    return terms
