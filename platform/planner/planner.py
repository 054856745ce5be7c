"""The planner of a live deployment: reports in, proposals out, and its memory.

    gateways' reports --> TrafficWatch --.
    who serves, by the registry ---------+--> plan --> limits of here and now --> Proposal
    what the document wants -------------'

The caller carries out proposals, and stores each outcome here for `baton explain planner`.
Decisions are based on current observations, including replicas that change their role: after a
restart only the history of sufficient numbers is lost, so pools do not shrink before `steady_s`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from baton.core.clock import Clock, monotonic
from baton.core.ids import Epoch, ReplicaId
from baton.core.replicas import Membership, ReportIntervals, Role
from baton.gateway.fleet.traffic import TrafficReport
from baton.platform.planner.config import PATIENCE, PlannerConfig
from baton.platform.planner.flips_under_way import FlipsUnderWay
from baton.platform.planner.measured_models import measured_models
from baton.platform.planner.observation import Memory, PoolCount
from baton.platform.planner.plan import foreseen, plan
from baton.platform.planner.planned import Planned
from baton.platform.planner.planner_metrics import PlannerMetrics, PlannerReply
from baton.platform.planner.proposal import Counts, DecidedProposal, Proposal, plain, shown
from baton.platform.planner.traffic_watch import TrafficWatch

log = logging.getLogger(__name__)

KEPT = 256
"""Changes, and refused changes, that are kept."""


@dataclass(slots=True)
class _Pool:
    """The last seen state of one role's pool, in engines."""

    ready: int = 0
    draining: int = 0
    wanted: int = 0
    """Wanted replicas in this role."""
    short_since_s: float | None = None
    """Time since which wanted replicas are missing and none of them has come."""
    no_node_since_s: float | None = None
    """Time since which there has been no node for a replica that is to be added."""


@dataclass(slots=True)
class Planner:
    """Single-threaded; `platform/cluster/registry/planning.py` asks it once a period."""

    planned: Planned
    clock: Clock = monotonic
    wall_clock: Callable[[], float] = time.time
    trouble_by_role: dict[Role, str] = field(default_factory=dict)
    """Why replicas do not start, by Serve's messages."""
    places: Counts = field(default_factory=dict)
    """Replicas that the nodes which are there hold; nobody asks where nodes are fixed."""
    metrics: PlannerMetrics = field(init=False)
    _no_flips_until_s: float = 0.0
    _memory: Memory = field(default_factory=Memory)
    _kept: deque[DecidedProposal] = field(default_factory=lambda: deque(maxlen=KEPT))
    _latest: DecidedProposal | None = None
    _flips: FlipsUnderWay = field(init=False)
    _watch: TrafficWatch = field(init=False)
    _pools: dict[Role, _Pool] = field(default_factory=lambda: {role: _Pool() for role in Role})

    def __post_init__(self) -> None:
        self._flips = FlipsUnderWay(self.clock)
        self._watch = TrafficWatch(self.clock)
        self.metrics = PlannerMetrics(self.wall_clock())

    def add_report(self, gateway: Epoch, report: TrafficReport) -> PlannerReply:
        """Take a gateway's report; reports may be late, repeated or lost. One of the reporting
        gateways gets the planner's metrics."""
        self._watch.add_report(gateway, report)
        planned = {role.value: count for role, count in self.counts.items()}
        if gateway != self._watch.first_heard:
            return PlannerReply(planned)
        known = self.metrics.families(
            self._explained_pools(), self._explained_gateways(), self.rules, self.wall_clock()
        )
        return PlannerReply(planned, tuple(known))

    @property
    def num_heard(self) -> int:
        """Number of gateways that report their traffic."""
        return self._watch.num_heard

    @property
    def rules(self) -> PlannerConfig:
        return self.planned.rules

    @property
    def counts(self) -> Counts:
        """The last decision; before the first, the wanted numbers."""
        return self.planned.wanted_engines if self._latest is None else self._latest.proposal.counts

    def want(self, counts: Counts, asked: Counts) -> None:
        """Set the replicas that there are to be from now on, and those that nodes are asked for."""
        known = {f"asked_{role.value}": number for role, number in asked.items()}
        rules = structs.replace(self.rules, **known)
        self.planned = replace(self.planned, wanted=counts, rules=rules)

    def told_of(self, role: Role, trouble: str) -> None:
        """Why replicas of this role do not come, by the word of who places them; or nothing."""
        if trouble and role in self.short():
            self.trouble_by_role[role] = trouble
        else:
            self.trouble_by_role.pop(role, None)

    def flips(self, replica_id: ReplicaId, role: Role) -> None:
        """Note that the replica was ordered to take this role."""
        self.metrics.flipped(role)
        self._flips.begin(replica_id, role, self.planned.flip_s)

    def add_instead(self) -> None:
        """A flip was refused: for a while, add and remove replicas instead."""
        self._no_flips_until_s = self.clock() + self.rules.cold_start_s

    def short(self) -> tuple[Role, ...]:
        """Roles whose replicas take too long to come."""
        now, patience_s = self.clock(), PATIENCE * self.rules.cold_start_s
        return tuple(
            role
            for role, pool in self._pools.items()
            if pool.short_since_s is not None and now - pool.short_since_s > patience_s
        )

    def propose(self, known: Membership) -> Proposal | None:
        """The proposal; None while too little is known."""
        planned, rules = self.planned, self.planned.live_rules
        intervals = ReportIntervals.of(
            sum(planned.wanted_engines.values())
        )  # at which they reported to an earlier registry
        if known.age_s < intervals.settled_after_s:
            return None
        self._see(known)
        observation = self._watch.observe(
            {role: self._count(role) for role in Role}, planned.num_gateways
        )
        models = measured_models(
            known.replicas, self._watch.speeds(), planned.max_running, 2 * rules.window_s
        )
        decision, self._memory = plan(observation, models, rules, self._memory)
        counts = {role: self._whole(role, decision.count(role)) for role in Role}
        causes: dict[Role, str] = {role: one.cause for role, one in decision.found.items()}
        notes: list[str] = []
        for role in self.short():
            if counts[role] > self._pools[role].wanted:
                counts[role] = self._pools[role].wanted
                causes[role] = "short"
                notes.append(self._told_of_short(role))
        held_s = {
            role: left_s for role in Role if (left_s := rules.held_s(role, self.wall_clock()))
        }
        is_held = any(counts[role] != self._pools[role].wanted for role in held_s)
        for role, left_s in held_s.items():
            counts[role] = self._pools[role].wanted
            causes[role] = "held"
            notes.append(f"{role.value}: set by hand, which holds for {left_s:.0f} s more")
        may_flip = planned.can_flip and not held_s and self.clock() >= self._no_flips_until_s
        under_way = self._flips.roles(known)
        flips, moved = decision.flips if may_flip else 0, self._flips.num_moved(known)
        if flips and under_way:
            counts = _after(counts, -flips)
            flips = 0
            notes.append("another flip is under way: the next waits for it")
        started = self._replicas(_after(counts, -moved - flips))
        falls_asleep = not any(counts.values())
        owing = [role for role in Role if started[role] < planned.least(role)]
        if (
            owing
            and not falls_asleep
            and not planned.is_asleep
            and may_flip
            and not flips
            and not under_way
        ):
            flips = 1 if owing == [Role.PREFILL] else -1
            counts = _after({role: pool.wanted for role, pool in self._pools.items()}, flips)
            started = dict(planned.wanted)
            notes.append(f"a replica goes back to {owing[0].value} before fewer are to be there")
        started = {
            role: 0 if falls_asleep else max(number, planned.least(role))
            for role, number in started.items()
        }
        asked = dict(started) if self._has_nodes_made else {}
        for role in asked:
            lacking = asked[role] - self._on_nodes(role, asked[role])
            if lacking:
                started[role] -= lacking
                counts[role] -= lacking * planned.of_one(role)
                causes[role] = "nodes"
                notes.append(self._told_of_nodes(role, asked[role]))
        proposal = Proposal(
            decision=decision,
            before={role: pool.wanted for role, pool in self._pools.items()},
            counts=counts,
            flips=flips,
            started_before=planned.wanted,
            started=started,
            asked_before={role: rules.asked(role) for role in asked},
            asked=asked,
            causes=causes,
            notes=tuple(notes),
            is_held=is_held,
        )
        self.metrics.decided(
            proposal,
            observation,
            foreseen(decision, observation, models, rules),
            rules.cold_start_s + rules.period_s,
            self.wall_clock(),
        )
        return proposal

    def keep(self, proposal: Proposal, outcome: str) -> None:
        """Store the outcome, and log it once."""
        kept, before = DecidedProposal(proposal, self.wall_clock(), outcome), self._latest
        self._latest = kept
        self.metrics.ended(outcome)
        is_news = before is None or (before.outcome, before.proposal.counts) != (
            outcome,
            proposal.counts,
        )
        if (proposal.is_change or proposal.is_held) and is_news:
            self._kept.append(kept)
            log.info("planner: %s, %s: %s", shown(proposal), outcome, "; ".join(proposal.reasons))

    def explain(self) -> dict[str, Any]:
        """The answer of GET /debug/planner."""
        return {
            "is_enabled": True,
            "mode": self.rules.mode,
            "promise": {name: getattr(self.rules, name) for name in ("ttft_s", "itl_s", "share")},
            "gateways": self._explained_gateways(),
            "pools": self._explained_pools(),
            "latest": None if self._latest is None else plain(self._latest),
            "changes": [plain(one) for one in reversed(self._kept)],
        }

    def _whole(self, role: Role, engines: int) -> int:
        """At least so many: those of a replica come and go together."""
        of_one = self.planned.of_one(role)
        return -(-engines // of_one) * of_one

    def _replicas(self, engines: Counts) -> dict[Role, int]:
        """Replicas as Serve counts them."""
        return {role: number // self.planned.of_one(role) for role, number in engines.items()}

    @property
    def _has_nodes_made(self) -> bool:
        return self.rules.nodes == "kuberay"

    def _on_nodes(self, role: Role, number: int) -> int:
        """The part of `number` that is already wanted, or has nodes."""
        pool, wanted = self._pools[role], self.planned.wanted[role]
        found = max(min(number, self.places.get(role, 0)), min(number, wanted))
        if found == number:
            pool.no_node_since_s = None
        elif pool.no_node_since_s is None:
            pool.no_node_since_s = self.clock()
        return found

    def _told_of_nodes(self, role: Role, asked: int) -> str:
        since_s = self._pools[role].no_node_since_s
        waited_s = 0.0 if since_s is None else self.clock() - since_s
        told = (
            f"{role.value}: nodes for {asked} are asked for, and those that are there hold "
            f"{self.places.get(role, 0)}, since {waited_s:.0f} s"
        )
        if waited_s > PATIENCE * self.rules.cold_start_s:
            told += "; `baton k8s follow` tells why none come"
        return told

    def _explained_gateways(self) -> dict[str, int]:
        return {"heard": self._watch.num_heard, "wanted": self.planned.num_gateways}

    def _explained_pools(self) -> dict[str, dict[str, int]]:
        return {
            role.value: {
                "planned": self.counts[role],
                "wanted": pool.wanted,
                "ready": pool.ready,
                "draining": pool.draining,
                **self._explained_nodes(role),
            }
            for role, pool in self._pools.items()
        }

    def _explained_nodes(self, role: Role) -> dict[str, int]:
        if not self._has_nodes_made:
            return {}
        asked = max(self.rules.asked(role), self.planned.wanted[role])
        of_one = self.planned.of_one(role)
        return {"asked": asked * of_one, "places": self.places.get(role, 0) * of_one}

    def _see(self, known: Membership) -> None:
        now, moved = self.clock(), self._flips.num_moved(known)
        wanted = self.planned.wanted_engines
        self._pools[Role.PREFILL].wanted = wanted[Role.PREFILL] - moved
        self._pools[Role.DECODE].wanted = wanted[Role.DECODE] + moved
        for role, pool in self._pools.items():
            of_role = [info.is_ready for info in known.replicas if info.role is role]
            has_more, pool.ready = sum(of_role) > pool.ready, sum(of_role)
            pool.draining = len(of_role) - pool.ready
            if pool.ready + pool.draining >= pool.wanted:
                pool.short_since_s = None
                self.trouble_by_role.pop(role, None)
            elif pool.short_since_s is None or has_more:
                pool.short_since_s = now

    def _count(self, role: Role) -> PoolCount:
        """Replicas by state: those wanted but not ready are starting; any beyond those wanted are
        draining."""
        pool, wanted = self._pools[role], self._pools[role].wanted
        serving = min(pool.ready, wanted)
        return PoolCount(serving, starting=wanted - serving, draining=pool.draining)

    def _told_of_short(self, role: Role) -> str:
        pool, wanted = self._pools[role], self._pools[role].wanted
        waited_s = self.clock() - (pool.short_since_s or 0.0)
        trouble = self.trouble_by_role.get(role)
        return (
            f"{role.value}: no more than {wanted} are asked for, since "
            f"{wanted - pool.ready} of them have not come for {waited_s:.0f} s"
            f"{'' if trouble is None else f' ({trouble})'}"
        )


def _after(counts: Counts, flips: int) -> dict[Role, int]:
    """The counts after `flips` prefill replicas flipped to decode (negative: the other way)."""
    return {
        Role.PREFILL: counts[Role.PREFILL] - flips,
        Role.DECODE: counts[Role.DECODE] + flips,
    }
