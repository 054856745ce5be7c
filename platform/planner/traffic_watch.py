"""Sums the gateways' traffic reports into one observation per period.

    add_report(gateway, report) ...  observe(pools) -> what came since the observation before

Of a gateway that reports for the first time, only later traffic counts. A silent gateway is left
out, and the observation is marked incomplete; its next report covers a longer time, so only the
last period's share of it counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from baton.core.clock import Clock
from baton.core.ids import Epoch
from baton.core.replicas import Role
from baton.gateway.fleet.traffic import ReplicaSpeed, TrafficReport
from baton.platform.planner.observation import Observation, PoolCount

REPORTS_S = 1.0
SILENT_S = 3.5 * REPORTS_S
"""Seconds of silence after which a gateway counts as gone."""
FORGOTTEN_S = 600.0
"""One that was silent for so long does not come back, or counts as new when it does."""
NOTHING = TrafficReport(age_s=0.0)


@dataclass(slots=True, eq=False)
class _LastReport:
    report: TrafficReport
    at_s: float
    counted: TrafficReport
    """The part of its report that was counted already."""
    counted_s: float
    """Time up to which the report has been in an observation."""


class TrafficWatch:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._observed_s = clock()
        self._has_heard = False
        self._heard_by_gateway: dict[Epoch, _LastReport] = {}

    def add_report(self, gateway: Epoch, report: TrafficReport) -> None:
        """Reports may come late and twice."""
        now, known = self._clock(), self._heard_by_gateway.get(gateway)
        if known is None:
            is_new = report.age_s <= SILENT_S
            counted, counted_s = (NOTHING, now - report.age_s) if is_new else (report, now)
            if not self._has_heard:
                self._has_heard, self._observed_s = True, counted_s
            self._heard_by_gateway[gateway] = _LastReport(report, now, counted, counted_s)
        elif report.age_s >= known.report.age_s:
            known.report, known.at_s = report, now

    @property
    def num_heard(self) -> int:
        return len(self._audible())

    @property
    def first_heard(self) -> Epoch | None:
        """The longest-known of the gateways that still report; None if none does."""
        now = self._clock()
        known = self._heard_by_gateway.items()
        return next((gateway for gateway, one in known if now - one.at_s <= SILENT_S), None)

    def speeds(self) -> dict[Epoch, ReplicaSpeed]:
        """Latest measured speed by replica; gateways may have received it at different times."""
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
        came = _Sums()
        for one in self._heard_by_gateway.values():
            came.add(one, lasted_s)
            one.counted, one.counted_s = one.report, one.at_s
        self._heard_by_gateway = {
            gateway: one
            for gateway, one in self._heard_by_gateway.items()
            if now - one.at_s <= FORGOTTEN_S
        }
        reports = [one.report for one in audible]
        return Observation(
            at_s=now,
            lasted_s=lasted_s,
            num_arrived=round(came.num_arrived),
            prompt_tokens=round(came.num_arrived * came.mean_prompt),
            squared_prompt_tokens=came.num_arrived * came.mean_squared_prompt,
            cached_tokens=round(came.num_arrived * came.mean_cached),
            num_ended=round(came.num_ended),
            output_tokens=round(came.output_tokens),
            num_waiting=sum(one.num_waiting for one in reports),
            num_for_decode=sum(one.num_for_decode for one in reports),
            waiting_tokens=sum(one.waiting_tokens for one in reports),
            oldest_wait_s=max((one.oldest_wait_s for one in reports), default=0.0),
            num_open=sum(one.num_open for one in reports),
            prefill=pools[Role.PREFILL],
            decode=pools[Role.DECODE],
            is_complete=len(audible) >= num_gateways,
        )

    def _audible(self) -> list[_LastReport]:
        now = self._clock()
        return [one for one in self._heard_by_gateway.values() if now - one.at_s <= SILENT_S]


@dataclass(slots=True)
class _Sums:
    """Traffic totals over all gateways."""

    num_arrived: float = 0.0
    arrived_tokens: float = 0.0
    num_placed: float = 0.0
    computed_tokens: float = 0.0
    squared_computed_tokens: float = 0.0
    cached_tokens: float = 0.0
    num_ended: float = 0.0
    output_tokens: float = 0.0

    def add(self, one: _LastReport, lasted_s: float) -> None:
        """Add what it reported since it was last counted: everything, or the last period's share if
        it was silent when others were counted."""
        told_s = one.at_s - one.counted_s
        share = lasted_s / told_s if told_s > lasted_s + SILENT_S else 1.0
        for name in self.__slots__:
            more = getattr(one.report, name) - getattr(one.counted, name)
            setattr(self, name, getattr(self, name) + share * more)

    @property
    def mean_prompt(self) -> float:
        """Mean number of computed tokens of prompts that were placed; if none was, of whole
        prompts."""
        if self.num_placed:
            return self.computed_tokens / self.num_placed
        return self.arrived_tokens / self.num_arrived if self.num_arrived else 0.0

    @property
    def mean_squared_prompt(self) -> float:
        if self.num_placed:
            return self.squared_computed_tokens / self.num_placed
        return self.mean_prompt**2

    @property
    def mean_cached(self) -> float:
        return self.cached_tokens / self.num_placed if self.num_placed else 0.0
