"""Divides tenants' rate limits among gateways by demand.

    share of a gateway = 0.1 / gateways + 0.9 * its demand / all demand         by tenant

Shares add up to 1, so all gateways together admit no more than the limit, except for requests that
a gateway admits before it learns of a smaller share. The even part lets a gateway without demand
answer its first requests; its share follows with its next report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from baton.core.clock import Clock
from baton.core.ids import Epoch

EVEN = 0.1
REPORTS_S = 1.0
TTL_S = 3.5 * REPORTS_S
"""Seconds of silence after which a gateway's share goes to the others."""


@dataclass(frozen=True, slots=True)
class _Report:
    demand: Mapping[str, float]
    at_s: float


class LimitShares:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._report_by_gateway: dict[Epoch, _Report] = {}

    def report(self, gateway: Epoch, demand: Mapping[str, float]) -> dict[str, float]:
        """Take a gateway's recent demand, by tenant; return its shares."""
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
