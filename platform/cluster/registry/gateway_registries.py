"""A gateway's client of several registries, except for watches.

shares of limits   reported to all; the least share that any gives is the gateway's. Two gateways
that reach a common registry stay within the limit, whatever others each of them reaches the planner
reports go to the first, in order, that answers: that one plans. For a moment two may get reports of
different gateways: neither shrinks a pool, since not all gateways report to it, and a change holds
a lock and only applies to the numbers that were read
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from baton.core.clock import Clock, monotonic
from baton.core.errors import Unavailable
from baton.core.ids import Epoch
from baton.gateway.fleet.traffic import TrafficReport
from baton.platform.planner.planner_metrics import PlannerReply
from baton.platform.registry.limit_shares import TTL_S

log = logging.getLogger(__name__)

T = TypeVar("T")

SHARES_S = 0.5
"""Seconds that a demand report waits for answers; later answers count with the next one."""
FIRST_S = 2.5
"""Seconds for one registry to answer before the next is asked, which then plans."""
AGAIN_S = 1.0
"""The same for one that did not answer before: otherwise the planning registry would count the
gateway as silent."""
AVOIDED_S = 10.0
"""Seconds for which an unresponsive registry is skipped."""


class Line(Protocol):
    """A client of one registry, through Serve."""

    async def share_limits(
        self, gateway: Epoch, demand: Mapping[str, float]
    ) -> dict[str, float]: ...
    async def report_traffic(self, gateway: Epoch, report: TrafficReport) -> PlannerReply: ...
    async def explain_planner(self) -> dict[str, Any]: ...


@dataclass(slots=True, eq=False)
class _Said:
    """The last shares from one registry."""

    shares: Mapping[str, float] = field(default_factory=dict)
    at_s: float = float("-inf")
    asking: asyncio.Task[None] | None = None
    trouble: Exception | None = None


class GatewayRegistries:
    """Belongs to an event loop. Raises the last error if none answers."""

    def __init__(self, lines: Sequence[Line], clock: Clock = monotonic) -> None:
        self._lines = tuple(lines)
        self._clock = clock
        self._said = tuple(_Said() for _ in lines)
        self._avoided_until_s = [float("-inf")] * len(lines)
        self._planner = 0
        """The index of the registry that last answered for the planner."""

    async def share_limits(self, gateway: Epoch, demand: Mapping[str, float]) -> dict[str, float]:
        asked = [
            self._ask(line, said, gateway, demand)
            for line, said in zip(self._lines, self._said, strict=True)
            if said.asking is None or said.asking.done()
        ]
        if asked:
            await asyncio.wait(asked, timeout=SHARES_S)
        now = self._clock()
        heard = [said.shares for said in self._said if now - said.at_s <= TTL_S]
        if not heard:
            raise next(
                (said.trouble for said in self._said if said.trouble is not None),
                Unavailable("no registry has answered yet"),
            )
        told = {tenant: [one[tenant] for one in heard if tenant in one] for tenant in demand}
        return {tenant: min(shares) for tenant, shares in told.items() if shares}

    def _ask(
        self, line: Line, said: _Said, gateway: Epoch, demand: Mapping[str, float]
    ) -> asyncio.Task[None]:
        async def ask() -> None:
            try:
                shares = await line.share_limits(gateway, demand)
            except Exception as error:  # whatever Ray raises while it is away
                said.trouble = error
            else:
                said.shares, said.at_s, said.trouble = shares, self._clock(), None

        said.asking = asyncio.create_task(ask(), name="asks for shares of limits")
        return said.asking

    async def report_traffic(self, gateway: Epoch, report: TrafficReport) -> PlannerReply:
        return await self._of_first(lambda line: line.report_traffic(gateway, report))

    async def explain_planner(self) -> dict[str, Any]:
        return await self._of_first(lambda line: line.explain_planner())

    async def _of_first(self, ask: Callable[[Line], Awaitable[T]]) -> T:
        """The answer of the first registry that answers."""
        now = self._clock()
        numbers = range(len(self._lines))
        asked = [n for n in numbers if self._avoided_until_s[n] <= now] or list(numbers)
        trouble: Exception | None = None
        for number in asked:
            patience_s = FIRST_S if number >= self._planner else AGAIN_S
            try:
                async with asyncio.timeout(patience_s):
                    answer = await ask(self._lines[number])
            except Exception as error:  # whatever Ray raises while it is away
                self._avoided_until_s[number] = self._clock() + AVOIDED_S
                trouble = error
                continue
            self._avoided_until_s[number] = float("-inf")
            if number != self._planner:
                log.warning("traffic is reported to registry %d, which plans from now on", number)
            self._planner = number
            return answer
        assert trouble is not None, "there is one at least"
        raise trouble
