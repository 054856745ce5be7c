"""Results of a simulated load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from baton.router.fairness.slo import NO_SLO, Slo


class Served(NamedTuple):
    """One prompt's way."""

    ttft_s: float
    """Waited and computed."""
    place: int
    """Index of the request among arrivals; in an open loop, in its trace."""
    num_tokens: int
    num_cached: int
    slo: Slo = NO_SLO


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The results in a row of the table."""

    num_requests: int
    mean_s: float
    """Mean seconds of queueing and prefill over accepted requests; the percentiles are of the same.
    """
    p50_s: float
    p99_s: float
    hit: float
    """Share of the prompts' tokens that were cached where they were computed."""
    imbalance: float
    """The busiest replica's time over the mean replica's."""
    goodput: float
    """Share of all requests, the rejected included, with a first token in time."""
    goodput_by_class: Mapping[str, float]
    """The same of each class that has an objective of its own."""
    rejected: int
    duration_s: float
    """Seconds from the trace's start to its last first token."""


@dataclass(slots=True)
class Outcome:
    served: list[Served] = field(default_factory=list)
    rejected: int = 0
    num_rejected_by_class: Counter[str] = field(default_factory=Counter)
    duration_s: float = 0.0
    busy_s: Sequence[float] = ()
    """Busy seconds of each replica."""

    def serve(self, served: Served) -> None:
        self.served.append(served)

    def reject(self, slo: Slo) -> None:
        self.rejected += 1
        self.num_rejected_by_class[slo.name] += 1

    def ended(self, now: float, busy_s: Sequence[float]) -> None:
        self.duration_s = now
        self.busy_s = busy_s

    def figures(self, slo_ttft_s: float) -> Figures:
        """At least one request was served, or rejected."""
        num_requests = len(self.served) + self.rejected
        ttft = np.array([one.ttft_s for one in self.served] or [0.0])
        p50_s, p99_s = np.percentile(ttft, (50, 99))
        num_tokens = sum(one.num_tokens for one in self.served)
        busy_s = np.array(self.busy_s)
        num_by_class = self.num_rejected_by_class + Counter(one.slo.name for one in self.served)
        num_good = Counter(
            one.slo.name
            for one in self.served
            if one.ttft_s <= (slo_ttft_s if one.slo.ttft_s is None else one.slo.ttft_s)
        )
        return Figures(
            num_requests=num_requests,
            mean_s=float(ttft.mean()),
            p50_s=float(p50_s),
            p99_s=float(p99_s),
            hit=sum(one.num_cached for one in self.served) / max(num_tokens, 1),
            imbalance=float(busy_s.max() / busy_s.mean()) if busy_s.any() else 1.0,
            goodput=num_good.total() / num_requests,
            goodput_by_class={
                name: num_good[name] / num for name, num in sorted(num_by_class.items()) if name
            },
            rejected=self.rejected,
            duration_s=self.duration_s,
        )
