"""A load on pools that the planner sizes, beside pools of one size that cost as much, and twice.

    planned    the numbers of replicas follow the load
    equal      as many all the time as the planned ones were on average
    twice      twice as many

A request is kept if its first token and, on average, its further ones came as promised; one that
was turned away is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from baton.core.replicas import Role
from baton.platform.planner.config import PlannerConfig
from baton.platform.planner.plan import Decision
from baton.platform.simulator.fleet.play import Fleet
from baton.platform.simulator.fleet.setup import FleetSetup
from baton.platform.traces.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFigures:
    name: str
    num_requests: int
    kept: float
    """Share of all requests."""
    ttft_kept: float
    itl_kept: float
    rejected: int
    replica_s: float
    """Replica-seconds of both roles, until the last token."""
    prefill: float
    """Replicas on average; so is the next."""
    decode: float
    reversals: int = 0
    """Changes of a pool's size against the one before, both roles."""
    num_flipped: int = 0
    decisions: Sequence[Decision] = ()


NUM_PLAYED = 3


def play_planned(
    trace: Trace, setup: FleetSetup, policy: str, seed: int
) -> Iterator[PlannedFigures]:
    """Yields the planned pools, those of equal cost and those of twice the cost. `setup` has rules,
    and the pools to begin with.
    """
    assert setup.rules is not None
    planned = _played("planned", trace, setup, policy, seed)
    yield planned
    for name, times in (("equal cost", 1), ("twice the cost", 2)):
        fixed = replace(
            setup,
            num_prefill=_at_least_one(times * planned.prefill) if setup.num_prefill else 0,
            num_decode=_at_least_one(times * planned.decode),
            rules=None,
        )
        yield _played(name, trace, fixed, policy, seed, rules=setup.rules)


def _at_least_one(number: float) -> int:
    return max(round(number), 1)


def _played(
    name: str,
    trace: Trace,
    setup: FleetSetup,
    policy: str,
    seed: int,
    rules: PlannerConfig | None = None,
) -> PlannedFigures:
    fleet = Fleet(trace, setup, policy, seed)
    outcome = fleet.play()
    promised = rules or setup.rules
    assert promised is not None
    served = outcome.served
    num_requests = len(served) + outcome.rejected
    lasted_s = outcome.duration_s
    costs = {role: fleet.pools.replica_s(role) for role in Role}
    in_time = [one.ttft_s <= promised.ttft_s for one in served]
    steady = [one.tpot_s <= promised.itl_s for one in served]
    decisions = () if fleet.planner is None else tuple(fleet.planner.decisions)
    return PlannedFigures(
        name=name,
        num_requests=num_requests,
        kept=sum(a and b for a, b in zip(in_time, steady, strict=True)) / num_requests,
        ttft_kept=sum(in_time) / num_requests,
        itl_kept=sum(steady) / num_requests,
        rejected=outcome.rejected,
        replica_s=sum(costs.values()),
        prefill=costs[Role.PREFILL] / lasted_s,
        decode=costs[Role.DECODE] / lasted_s,
        reversals=sum(_reversals([one.count(role) for one in decisions]) for role in Role),
        num_flipped=fleet.pools.num_flipped,
        decisions=decisions,
    )


def _reversals(counts: Sequence[int]) -> int:
    """Times that a pool that grew shrinks, or the other way round."""
    changes = [later - earlier for earlier, later in pairwise(counts)]
    grows = [change > 0 for change in changes if change]
    return sum(one is not other for one, other in pairwise(grows))
