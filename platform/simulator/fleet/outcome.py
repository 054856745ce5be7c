"""Results of a load on a simulated fleet."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from baton.platform.simulator.fleet.figures import FleetFigures, TenantFigures
from baton.platform.simulator.fleet.turns import Turn
from baton.router.fairness.slo import NO_SLO, Slo


class Served(NamedTuple):
    """A request that got its last token."""

    arrived_s: float
    ttft_s: float
    tpot_s: float
    """0 of one token."""
    place: int
    """Index of the request among arrivals; in an open loop, in its trace."""
    gateway: int
    num_tokens: int
    """Tokens of its prompt, including cached ones."""
    num_cached: int
    num_output: int = 0
    slo: Slo = NO_SLO
    tenant: str = ""

    def is_in_time(self, slo_ttft_s: float) -> bool:
        """By its class, and within `slo_ttft_s` if that says nothing of it."""
        ttft_s = slo_ttft_s if self.slo.ttft_s is None else self.slo.ttft_s
        return self.ttft_s <= ttft_s and self.tpot_s <= self.slo.allowed_itl_s


@dataclass(slots=True)
class FleetOutcome:
    rejected: int = 0
    num_rejected_by_class: Counter[str] = field(default_factory=Counter)
    num_rejected_by_tenant: Counter[str] = field(default_factory=Counter)
    num_asked_again: int = 0
    """Requests asked again because a gateway died."""
    ttft_s: array[float] = field(default_factory=lambda: array("d"))
    e2e_s: array[float] = field(default_factory=lambda: array("d"))
    gaps_s: array[float] = field(default_factory=lambda: array("d"))
    tpot_s: array[float] = field(default_factory=lambda: array("d"))
    served: list[Served] = field(default_factory=list)
    num_told: int = 0
    num_held: int = 0
    """Requests of `num_told` whose first token came within the interval that was estimated."""
    num_output_tokens: int = 0
    num_tokens: int = 0
    """Prompt tokens; the next two count prompt tokens, too."""
    num_cached: int = 0
    num_pulled: int = 0
    busy_s: Sequence[float] = ()
    num_local: int = 0
    num_preempted: int = 0
    duration_s: float = 0.0

    def serve(self, turn: Turn) -> None:
        """It has its last token."""
        self.ttft_s.append(turn.first_token_s - turn.arrived_s)
        self.e2e_s.append(turn.last_token_s - turn.arrived_s)
        self.gaps_s.extend(turn.gaps_s)
        num_later = turn.num_given - 1
        tpot_s = 0.0
        if num_later:
            tpot_s = (turn.last_token_s - turn.first_token_s) / num_later
            self.tpot_s.append(tpot_s)
        self.served.append(
            Served(
                arrived_s=turn.arrived_s,
                ttft_s=turn.first_token_s - turn.arrived_s,
                tpot_s=tpot_s,
                place=turn.arrival.place,
                gateway=turn.gateway,
                num_tokens=len(turn.prompt),
                num_cached=turn.num_cached,
                num_output=turn.num_given,
                slo=turn.slo,
                tenant=turn.tenant,
            )
        )
        if turn.ttft_estimate is not None:
            self.num_told += 1
            self.num_held += turn.ttft_estimate.holds(turn.first_token_s)
        self.num_output_tokens += turn.num_given
        self.num_tokens += len(turn.prompt)
        self.num_cached += turn.num_cached
        self.num_pulled += turn.num_pulled
        self.duration_s = turn.last_token_s

    def reject(self, turn: Turn) -> None:
        self.rejected += 1
        self.num_rejected_by_class[turn.slo.name] += 1
        self.num_rejected_by_tenant[turn.tenant] += 1

    def ended(self, *, busy_s: Sequence[float], num_preempted: int, num_local: int) -> None:
        self.busy_s, self.num_preempted, self.num_local = busy_s, num_preempted, num_local

    def figures(self, slo_ttft_s: float) -> FleetFigures:
        """At least one request was served, or rejected."""
        ttft = np.array(self.ttft_s or [0.0])
        gaps = np.array(self.gaps_s or [0.0])
        busy_s = np.array(self.busy_s)
        p50_s, p90_s, p99_s = map(float, np.percentile(ttft, (50, 90, 99)))
        itl_p50_s, itl_p90_s, itl_p99_s = map(float, np.percentile(gaps, (50, 90, 99)))
        num_requests = len(self.ttft_s) + self.rejected
        by_class = _grouped(self.served, lambda one: one.slo.name, self.num_rejected_by_class)
        by_tenant = _grouped(self.served, lambda one: one.tenant, self.num_rejected_by_tenant)
        num_good = _num_in_time(self.served, slo_ttft_s)
        return FleetFigures(
            num_requests=num_requests,
            mean_s=float(ttft.mean()),
            p50_s=p50_s,
            p90_s=p90_s,
            p99_s=p99_s,
            itl_mean_s=float(gaps.mean()),
            itl_p50_s=itl_p50_s,
            itl_p90_s=itl_p90_s,
            itl_p99_s=itl_p99_s,
            tpot_p50_s=float(np.median(self.tpot_s or [0.0])),
            e2e_p50_s=float(np.median(self.e2e_s or [0.0])),
            hit=self.num_cached / max(self.num_tokens, 1),
            imbalance=float(busy_s.max() / busy_s.mean()) if busy_s.any() else 1.0,
            goodput=num_good / num_requests,
            goodput_by_class={
                name: _num_in_time(its, slo_ttft_s) / (len(its) + self.num_rejected_by_class[name])
                for name, its in by_class.items()
            },
            tenants={
                name: _tenant(its, self.num_rejected_by_tenant[name], slo_ttft_s)
                for name, its in by_tenant.items()
            },
            coverage=self.num_held / max(self.num_told, 1),
            rejected=self.rejected,
            num_local=self.num_local,
            num_preempted=self.num_preempted,
            num_pulled_tokens=self.num_pulled,
            duration_s=self.duration_s,
        )


def _grouped(
    served: Sequence[Served], key: Callable[[Served], str], rejected: Mapping[str, int]
) -> dict[str, list[Served]]:
    """By name; those without one are left out."""
    found: dict[str, list[Served]] = {name: [] for name in rejected}
    for one in served:
        found.setdefault(key(one), []).append(one)
    return {name: found[name] for name in sorted(found) if name}


def _num_in_time(served: Sequence[Served], slo_ttft_s: float) -> int:
    return sum(one.is_in_time(slo_ttft_s) for one in served)


def _tenant(served: Sequence[Served], rejected: int, slo_ttft_s: float) -> TenantFigures:
    ttft_s = np.array([one.ttft_s for one in served] or [0.0])
    num_requests = len(served) + rejected
    return TenantFigures(
        num_requests=num_requests,
        rejected=rejected,
        mean_s=float(ttft_s.mean()),
        p99_s=float(np.percentile(ttft_s, 99)),
        goodput=_num_in_time(served, slo_ttft_s) / num_requests,
        num_tokens=sum(one.num_tokens + one.num_output for one in served),
    )
