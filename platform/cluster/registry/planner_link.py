"""A gateway's link to the planner in the registry: traffic there, decisions back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, Protocol

from baton.core.clock import Clock, monotonic
from baton.core.errors import Unavailable
from baton.core.ids import Epoch
from baton.core.metrics import Family, Sample, gauge
from baton.core.replicas import Role
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.gateway.fleet.traffic import TrafficReport
from baton.platform.planner.planner_metrics import PlannerReply
from baton.platform.planner.traffic_watch import REPORTS_S, SILENT_S

log = logging.getLogger(__name__)

FRESH_S = SILENT_S - 0.5 * REPORTS_S
"""Seconds after which this gateway drops the planner's metrics, before another gateway exports
them."""


class PlannerRegistry(Protocol):
    """Raises Ray's errors while the registry is away."""

    async def report_traffic(self, gateway: Epoch, report: TrafficReport) -> PlannerReply: ...

    async def explain_planner(self) -> dict[str, Any]: ...


class PlannerLink:
    def __init__(
        self,
        dispatcher: ReplicaDispatcher,
        wanted: Mapping[Role, int],
        clock: Clock = monotonic,
    ) -> None:
        self.wanted = wanted
        """The currently configured numbers of replicas."""
        self.has_followed_groups = False
        """Whether worker groups follow the numbers of replicas."""
        self._dispatcher = dispatcher
        self._clock = clock
        self._told = PlannerReply()
        self._told_s = -inf
        self._registry: PlannerRegistry | None = None
        self.explained_by: PlannerRegistry | None = None
        """The registry to ask for the planner's reasons; None: no planner."""
        self._reporting: asyncio.Task[None] | None = None

    def follow(self, registry: PlannerRegistry | None) -> None:
        """Report to this registry from now on; None: to none. Safe to repeat."""
        if registry is self._registry:
            return
        self._registry, self._told = registry, PlannerReply()
        if self._reporting is not None:
            self._reporting.cancel()
            self._reporting = None
        if registry is not None:
            self._reporting = asyncio.create_task(self._report(registry), name="reports traffic")

    async def explain(self) -> dict[str, Any]:
        if self.explained_by is None:
            return {"is_enabled": False}
        try:
            return await self.explained_by.explain_planner()
        except Exception as error:  # whatever Ray raises
            raise Unavailable(
                f"the planner does not answer ({error!r}); it runs in the registry, which Serve "
                "restarts if it has failed: try again"
            ) from error

    def families(self) -> Iterator[Family]:
        ready = dict.fromkeys(Role, 0)
        for info, trouble in self._dispatcher.fleet.trouble_by_replica().items():
            ready[info.role] += not trouble
        wanted = {role.value: self.wanted.get(role, 0) for role in Role}
        yield _family("wanted", "Replicas that are configured now, by role", wanted)
        yield _family(
            "ready",
            "Replicas that take requests, as far as this gateway knows, by role",
            {role.value: number for role, number in ready.items()},
        )
        if self.has_followed_groups:
            help = "1 where an adapter is to have worker groups follow the numbers of replicas"
            yield gauge("baton_gateway_followed_groups", help, 1)
        if self._told.planned:
            help = "Replicas that the planner decided on last, by role"
            yield _family("planned", help, self._told.planned)
        if self._clock() - self._told_s < FRESH_S:
            yield from self._told.families

    async def _report(self, registry: PlannerRegistry) -> None:
        """Report traffic for ever. A lost report is covered by the next; a slow one does not delay
        it."""
        is_away = False
        while True:
            began_s = self._clock()
            try:
                report = self._dispatcher.traffic()
                self._told = await registry.report_traffic(self._dispatcher.epoch, report)
                self._told_s = began_s
                is_away = False
            except Exception as error:
                if not is_away:
                    log.warning("the planner is away (%r); the pools stay as they are", error)
                is_away = True
            await asyncio.sleep(max(REPORTS_S - (self._clock() - began_s), 0.0))


def _family(which: str, help: str, counts: Mapping[str, int]) -> Family:
    samples = [Sample({"role": role}, float(number)) for role, number in counts.items()]
    return Family(f"baton_gateway_{which}_replicas", "gauge", help, samples)
