"""What all gateways tell of their traffic, added up: one observation a period.

    hear(gateway, report) ...  observe(pools) -> what came since the observation before

A gateway that is heard for the first time after a silence may have counted for long: only what
comes from then on is counted. One that is silent is left out; whoever decides is told so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from baton.core.clock import Clock
from baton.core.ids import Epoch
from baton.core.messages import Role
from baton.gateway.fleet.traffic import ReplicaSpeed, TrafficReport
from baton.platform.planner.observation import Observation, PoolCount

REPORTS_S = 1.0
SILENT_S = 3.5 * REPORTS_S
"""A gateway that says nothing for so long is gone, or cannot be heard."""
NOTHING = TrafficReport(age_s=0.0)


@dataclass(slots=True, eq=False)
class _Heard:
    report: TrafficReport
    at_s: float
    counted: TrafficReport
    """What of it has been in an observation."""


class TrafficWatch:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._observed_s = clock()
        self._heard_by_gateway: dict[Epoch, _Heard] = {}

    def hear(self, gateway: Epoch, report: TrafficReport) -> None:
        """Reports may come late and twice."""
        now, known = self._clock(), self._heard_by_gateway.get(gateway)
        if known is None or now - known.at_s > SILENT_S:
            counted = NOTHING if report.age_s <= SILENT_S else report
            self._heard_by_gateway[gateway] = _Heard(report, now, counted)
        elif report.age_s >= known.report.age_s:
            known.report, known.at_s = report, now

    @property
    def num_heard(self) -> int:
        return len(self._audible())

    def speeds(self) -> dict[Epoch, ReplicaSpeed]:
        """By replica, as measured last; gateways may have heard of it at different times."""
        now = self._clock()
        found: dict[Epoch, ReplicaSpeed] = {}
        for one in self._audible():
            for epoch, speed in one.report.speeds.items():
                known, age_s = found.get(epoch), speed.age_s + now - one.at_s
                if known is None or age_s < known.age_s:
                    found[epoch] = ReplicaSpeed(speed.times, age_s)
        return found

    def observe(self, pools: Mapping[Role, PoolCount], num_gateways: int) -> Observation:
        now, audible = self._clock(), self._audible()
        lasted_s, self._observed_s = now - self._observed_s, now
        came = _Sums.of((one.report, one.counted) for one in self._heard_by_gateway.values())
        for one in self._heard_by_gateway.values():
            one.counted = one.report
        self._heard_by_gateway = {
            gateway: one for gateway, one in self._heard_by_gateway.items() if one in audible
        }
        reports = [one.report for one in audible]
        return Observation(
            at_s=now,
            lasted_s=lasted_s,
            num_arrived=came.num_arrived,
            prompt_tokens=round(came.num_arrived * came.mean_prompt),
            squared_prompt_tokens=came.num_arrived * came.mean_squared_prompt,
            cached_tokens=round(came.num_arrived * came.mean_cached),
            num_ended=came.num_ended,
            output_tokens=came.output_tokens,
            num_waiting=sum(one.num_waiting for one in reports),
            waiting_tokens=sum(one.waiting_tokens for one in reports),
            oldest_wait_s=max((one.oldest_wait_s for one in reports), default=0.0),
            num_open=sum(one.num_open for one in reports),
            prefill=pools[Role.PREFILL],
            decode=pools[Role.DECODE],
            is_complete=len(audible) >= num_gateways,
        )

    def _audible(self) -> list[_Heard]:
        now = self._clock()
        return [one for one in self._heard_by_gateway.values() if now - one.at_s <= SILENT_S]


@dataclass(slots=True)
class _Sums:
    """Of what came to all gateways."""

    num_arrived: int = 0
    arrived_tokens: int = 0
    num_placed: int = 0
    computed_tokens: int = 0
    squared_computed_tokens: int = 0
    cached_tokens: int = 0
    num_ended: int = 0
    output_tokens: int = 0

    @classmethod
    def of(cls, pairs: Iterable[tuple[TrafficReport, TrafficReport]]) -> _Sums:
        """Differences of each pair."""
        found = cls()
        for later, earlier in pairs:
            for name in cls.__slots__:
                more = getattr(later, name) - getattr(earlier, name)
                setattr(found, name, getattr(found, name) + more)
        return found

    @property
    def mean_prompt(self) -> float:
        """What had to be computed of prompts that were placed; where none was, whole prompts."""
        if self.num_placed:
            return self.computed_tokens / self.num_placed
        return self.arrived_tokens / max(self.num_arrived, 1)

    @property
    def mean_squared_prompt(self) -> float:
        if self.num_placed:
            return self.squared_computed_tokens / self.num_placed
        return self.mean_prompt**2

    @property
    def mean_cached(self) -> float:
        return self.cached_tokens / max(self.num_placed, 1)
