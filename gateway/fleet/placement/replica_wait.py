"""How long requests wait while no decode replica accepts any.

no replica takes requests   for the grace period ----------------> Unavailable
  one is being started      as long as it is on its way
  starts fail               not at all --------------------------> Unavailable
one takes requests          no limit from here: `admission.py` has its own
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from baton.core.errors import Unavailable
from baton.core.replicas import Role
from baton.gateway.fleet.fleet import Fleet

log = logging.getLogger(__name__)


class ReplicaWait:
    """Belongs to the event loop of its fleet, and is informed of the fleet's changes."""

    def __init__(self, fleet: Fleet, grace_s: float, cold_start_s: float | None) -> None:
        """`cold_start_s`: seconds until a replica serves that is started for waiting requests where
        there is none; None: none is started."""
        self._fleet = fleet
        self._grace_s = grace_s
        self._cold_start_s = cold_start_s
        self._was_open = False
        self._outlook: tuple[bool, int, str] = (False, 0, "")
        """The state on which `limits` depend."""
        self.limits: set[asyncio.Timeout] = set()
        """Time limits of waiting requests, which run while no decode replica accepts requests."""

    def reconfigure(self, grace_s: float, cold_start_s: float | None) -> None:
        self._grace_s = grace_s
        self._cold_start_s = cold_start_s

    @property
    def can_decode(self) -> bool:
        return self._fleet.takes_requests

    @property
    def starting_s(self) -> float | None:
        """Seconds until a replica serves that starts for waiting requests; None: none starts."""
        return None if self.can_decode else self._cold_start_s

    @property
    def why_refused(self) -> str:
        """Why requests are refused; empty while a replica may still start."""
        is_refused = self.starting_s is not None
        return self._fleet.failed_starts.why_refused(self._fleet.starting) if is_refused else ""

    @property
    def makes_sense(self) -> bool:
        """Whether requests are accepted, or replicas are started for them."""
        return self.can_decode or (self._cold_start_s is not None and not self.why_refused)

    @property
    def trouble(self) -> str:
        return self.why_refused or "no decode replica takes requests"

    @asynccontextmanager
    async def while_replicas_may_start(self) -> AsyncIterator[None]:
        """Raises Unavailable once no decode replica has taken requests for the grace period and
        none is starting for waiting requests; at once if starts fail."""
        try:
            async with asyncio.timeout_at(self._ends_at()) as limit:
                self.limits.add(limit)
                try:
                    yield
                finally:
                    self.limits.discard(limit)
        except TimeoutError:
            raise Unavailable(f"{self.trouble}; /ready says what is missing") from None

    def on_fleet_change(self) -> None:
        is_open = self.can_decode
        if is_open != self._was_open:
            self._was_open = is_open
            if is_open:
                log.info("requests are taken")
            elif self._cold_start_s is not None:
                log.info("there is no decode replica; one is started for the requests that wait")
            else:
                log.warning("no decode replica takes requests; /ready says what is missing")
        failed = self._fleet.failed_starts
        if is_open:
            failed.clear()
        outlook = (self._is_awaited(), failed.num, self.why_refused)
        if outlook != self._outlook:
            self._outlook = outlook
            for limit in self.limits:
                if not limit.expired():
                    limit.reschedule(self._ends_at())

    def _is_awaited(self) -> bool:
        """Whether a replica is expected that will accept requests."""
        starting = (one.role is Role.DECODE and not one.failure for one in self._fleet.starting)
        return self.can_decode or (self._cold_start_s is not None and any(starting))

    def _ends_at(self) -> float | None:
        now = asyncio.get_running_loop().time()
        if self.why_refused:
            return now
        return None if self._is_awaited() else now + self._grace_s
