"""The planner's Prometheus metrics.

The registry has no metrics port, so one gateway exports these, received with the registry's answers
(`platform/cluster/registry/planner_link.py`). They are thus exported once, with any number of
gateways.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from baton.core.metrics import Counter, Family, Sample, gauge
from baton.core.replicas import Role
from baton.platform.planner.capacity import Need
from baton.platform.planner.config import PlannerConfig
from baton.platform.planner.observation import Observation
from baton.platform.planner.proposal import Proposal

PREFIX = "baton_planner_"
MOST_FORETOLD = 4096
OF_POOLS = {
    "planned": "Replicas that it decided on last, by role",
    "wanted": "Replicas that there are to be, by role",
    "ready": "Replicas that take requests, by role",
    "draining": "Replicas that take none any more, by role",
    "asked": "Replicas that nodes are asked for, by role",
    "places": "Replicas that the nodes which are there hold, by role",
}
"""Counts of replicas in `Planner.explain`, each a family."""


@dataclass(frozen=True, slots=True)
class PlannerReply:
    """The registry's answer to a gateway's report."""

    planned: Mapping[str, int] = field(default_factory=dict)
    """The last decided replicas, by role; empty without a planner."""
    families: tuple[Family, ...] = ()
    """Metric families for the /metrics page of one of the gateways."""


@dataclass(slots=True)
class PlannerMetrics:
    decided_at: float
    """Unix time of the last decision; before the first, of the planner's start."""
    _proposal: Proposal | None = None
    _foreseen: Mapping[Role, Need] = field(default_factory=dict)
    _foretold: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=MOST_FORETOLD)
    )
    """Pairs of (time at which requested replicas would serve, rate expected for that time)."""
    _foretold_for_now: float | None = None
    _arrivals: Counter = field(
        default_factory=lambda: Counter(f"{PREFIX}arrivals_total", "Requests, as gateways reported")
    )
    _decisions: Counter = field(
        default_factory=lambda: Counter(
            f"{PREFIX}decisions_total",
            "Decisions about a role's number, one a period, by what settled it",
            ("role", "cause"),
        )
    )
    _outcomes: Counter = field(
        default_factory=lambda: Counter(
            f"{PREFIX}outcomes_total", "Decisions, by what came of them", ("outcome",)
        )
    )
    _flips: Counter = field(
        default_factory=lambda: Counter(
            f"{PREFIX}flips_total", "Replicas that were ordered to take another role", ("to",)
        )
    )

    def __post_init__(self) -> None:
        for role in Role:
            self._flips.add(0, role.value)  # `increase` misses what comes with the first sample

    def decided(
        self,
        proposal: Proposal,
        observation: Observation,
        foreseen: Mapping[Role, Need],
        horizon_s: float,
        at: float,
    ) -> None:
        """`foreseen`: with the replicas that serve now. `horizon_s`: from now until one that is
        added serves. `at`: Unix time."""
        self.decided_at, self._proposal, self._foreseen = at, proposal, foreseen
        self._arrivals.add(observation.num_arrived)
        for role, cause in proposal.causes.items():
            self._decisions.add(1, role.value, cause)
        seen = proposal.decision.seen
        if seen is not None:
            self._foretold.append((observation.at_s + horizon_s, seen.ahead.rate))
        while self._foretold and self._foretold[0][0] <= observation.at_s:
            self._foretold_for_now = self._foretold.popleft()[1]

    def ended(self, outcome: str) -> None:
        """`outcome`: what came of a decision; what follows a colon is of this one alone."""
        self._outcomes.add(1, outcome.partition(":")[0])

    def flipped(self, to: Role) -> None:
        self._flips.add(1, to.value)

    def families(
        self,
        pools: Mapping[str, Mapping[str, int]],
        gateways: Mapping[str, int],
        rules: PlannerConfig,
        now: float,
    ) -> Iterator[Family]:
        """`pools` and `gateways` as `Planner.explain` has them. `now`: Unix time."""
        yield _of_roles("least_replicas", "By planner.min_prefill and min_decode", rules.least)
        yield _of_roles("most_replicas", "By planner.max_prefill and max_decode", rules.most)
        yield _of_roles(
            "held_seconds",
            "For so long what a person set still stays, by role",
            lambda role: rules.held_s(role, now),
        )
        promised = {Role.PREFILL: rules.ttft_s, Role.DECODE: rules.itl_s}
        help = "To the first token by prefill replicas, from token to token by decode replicas"
        yield _of_roles("promised_seconds", help, promised.__getitem__)
        for name, told in (("heard", "that report to it"), ("wanted", "that there are to be")):
            yield gauge(f"{PREFIX}gateways_{name}", f"Gateways {told}", gateways[name])
        yield gauge(f"{PREFIX}decided_timestamp_seconds", "Of the last decision", self.decided_at)
        for counter in (self._arrivals, self._decisions, self._outcomes, self._flips):
            yield counter.family()
        if self._proposal is None:  # no counts yet
            return
        for name, help in OF_POOLS.items():
            counts = {role: pool[name] for role, pool in pools.items() if name in pool}
            yield _by_role(f"{name}_replicas", help, counts)
        yield from self._of_last(self._proposal)

    def _of_last(self, proposal: Proposal) -> Iterator[Family]:
        decision = proposal.decision
        demanded = {role.value: one.demanded for role, one in decision.found.items()}
        help = "Replicas that would keep the promise, whatever limits allow, by role"
        yield _by_role("demanded_replicas", help, demanded)
        foreseen = {role.value: need.seconds for role, need in self._foreseen.items()}
        help = "Seconds that the promised share of requests takes at most with those that serve"
        yield _by_role("foreseen_seconds", help, foreseen)
        kept = {role.value: float(need.is_kept) for role, need in self._foreseen.items()}
        yield _by_role("promise_kept", "1 where that is what was promised, by role", kept)
        if decision.seen is None:
            return
        rates = {
            "arrivals_per_second": ("Requests that come now", decision.seen.now.rate),
            "expected_arrivals_per_second": (
                "Requests that are expected when a replica that is added now serves",
                decision.seen.ahead.rate,
            ),
            "foretold_arrivals_per_second": (
                "Requests that were expected for now, a cold start ago",
                self._foretold_for_now,
            ),
        }
        for name, (help, rate) in rates.items():
            if rate is not None:
                yield gauge(PREFIX + name, help, rate)


def _of_roles(name: str, help: str, number: Callable[[Role], float]) -> Family:
    return _by_role(name, help, {role.value: number(role) for role in Role})


def _by_role(name: str, help: str, numbers: Mapping[str, float]) -> Family:
    samples = [Sample({"role": role}, float(number)) for role, number in numbers.items()]
    return Family(PREFIX + name, "gauge", help, samples)
