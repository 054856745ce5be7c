"""How several gateways divide the limits of tenants among themselves: by what each was asked for.

    share of a gateway = 0.1 / gateways + 0.9 * its demand / all demand         by tenant

Shares add up to 1, so together gateways let in no more than the limit, but for what was let in by
a gateway before it heard that its share is smaller now. The even part is for a gateway that nobody
asked yet: it can answer the first who do, and its share follows with its next report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from baton.core.clock import Clock
from baton.core.ids import Epoch

EVEN = 0.1
REPORTS_S = 1.0
TTL_S = 3.5 * REPORTS_S
"""A gateway that is silent for so long is gone, and its share is the others'."""


@dataclass(frozen=True, slots=True)
class _Report:
    demand: Mapping[str, float]
    at_s: float


class LimitShares:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._report_by_gateway: dict[Epoch, _Report] = {}

    def report(self, gateway: Epoch, demand: Mapping[str, float]) -> dict[str, float]:
        """Hear of what a gateway was asked for lately, by tenant; answer with its shares."""
        now = self._clock()
        self._report_by_gateway[gateway] = _Report(demand, now)
        silent = [one for one, it in self._report_by_gateway.items() if now - it.at_s > TTL_S]
        for one in silent:
            del self._report_by_gateway[one]
        return {tenant: self._share(tenant, own) for tenant, own in demand.items()}

    def _share(self, tenant: str, own: float) -> float:
        reports = self._report_by_gateway.values()
        total = sum(report.demand.get(tenant, 0.0) for report in reports)
        even = 1 / len(reports)
        return even if total <= 0 else EVEN * even + (1 - EVEN) * own / total
