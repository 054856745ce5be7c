"""The requests of this gateway that have no place, from both lines to an open attempt.

    place --> AdmissionQueue --> PlacementQueue --> Placed
              in turn, while     in line, for a
              there is no room   prefill replica

All of it ends with DeadlineExceeded when a request's time is over, with Overloaded when it has
waited as long as it may, and with Unavailable when no replica comes (`replica_wait.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Literal

from baton.core.clock import Clock
from baton.core.errors import DeadlineExceeded, Overloaded
from baton.core.ids import RequestId
from baton.gateway.access.api_keys import BACKGROUND
from baton.gateway.fleet.fleet import Fleet
from baton.gateway.fleet.placement.admission import AdmissionQueue
from baton.gateway.fleet.placement.admission_line import AdmissionTicket
from baton.gateway.fleet.placement.decision_log import DecisionLog
from baton.gateway.fleet.placement.placement_queue import PlacementAttempt, PlacementQueue
from baton.gateway.fleet.placement.replica_wait import ReplicaWait
from baton.gateway.requests.generations.prompt_progress import PromptProgress
from baton.router.cache.prompt_names import PromptNames
from baton.router.placer import Placer

LOOK_S = 0.25
"""Seconds between retries of the line when nothing happens, since replicas may fall silent."""


class WaitingRequests:
    """Belongs to the event loop of its fleet, and is notified of the fleet's changes."""

    def __init__(  # noqa: PLR0913 - what it goes by, each by name
        self,
        fleet: Fleet,
        placer: Placer,
        log: DecisionLog,
        replica_wait: ReplicaWait,
        *,
        max_waiting: int,
        weights: Mapping[str, float],
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._placer = placer
        self._log = log
        self._replica_wait = replica_wait
        self._clock = clock
        self._admission: AdmissionQueue[PlacementAttempt] = AdmissionQueue(
            max_waiting, weights, clock, self._may_admit_now
        )
        self._line = PlacementQueue(fleet, placer, log, clock)
        self._attempts: dict[RequestId | None, PlacementAttempt] = {}
        self._will_place = False
        self.num_interactive = 0
        """Requests without a place that are not background work."""
        self.has_changed = asyncio.Event()
        """Set at each change of the fleet; cleared by the task that waits for the next."""

    def reconfigure(self, max_waiting: int, weights: Mapping[str, float]) -> None:
        self._admission.reconfigure(max_waiting, weights)

    def __len__(self) -> int:
        return len(self._admission) + len(self._line)

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Charge `num_tokens` computed tokens to a tenant."""
        self._admission.charge(tenant, num_tokens)

    async def place(self, attempt: PlacementAttempt, turn: AdmissionTicket) -> None:
        """Wait for a place, in turn, and open an attempt there."""
        self._attempts[turn.request_id] = attempt
        is_interactive = turn.priority < BACKGROUND
        self.num_interactive += is_interactive
        try:
            await self._place(attempt, turn)
        finally:
            self.num_interactive -= is_interactive
            if self._attempts.get(turn.request_id) is attempt:
                del self._attempts[turn.request_id]

    def progress(self, request_id: RequestId, num_tokens: int) -> PromptProgress | None:
        """Where a request of `num_tokens` waits, and how long it will; None if it does not."""
        attempt = self._attempts.get(request_id)
        if attempt is not None and attempt.prompt is not None:
            position, left_s = self._placer.foreseen(attempt.prompt, self._clock())
            return _waits("in_line", position, num_tokens, left_s)
        foreseen = self._admission.foreseen(request_id)
        if foreseen is None:
            return None
        position, wait_s = foreseen
        starting_s = self._replica_wait.starting_s
        if starting_s is not None:
            return _waits("starting", position, num_tokens, starting_s)
        return _waits("queued", position, num_tokens, wait_s + self._log.queued_s(1, 1))

    def admitted_in_s(self, tenant: str, priority: int, due_in_s: float) -> float:
        """Predicted seconds until a new request is admitted."""
        num_replicas = len(self._fleet.lending) or sum(1 for _ in self._fleet.open_decode)
        num_before = self._admission.num_before(tenant, priority, due_in_s)
        return self._log.queued_s(num_before, num_replicas)

    def on_fleet_change(self) -> None:
        """Schedule a placement round after the current callback, so that several changes share
        one."""
        self._replica_wait.on_fleet_change()
        self.has_changed.set()
        if not self._will_place:
            self._will_place = True
            asyncio.get_running_loop().call_soon(self._place_waiting)

    async def look_after(self) -> None:
        """Place every LOOK_S, even if no replica reports a change."""
        while True:
            await self._line.has_line.wait()
            await asyncio.sleep(LOOK_S)
            if len(self._line):
                self.on_fleet_change()
            else:
                self._line.has_line.clear()

    def _place_waiting(self) -> None:
        self._will_place = False
        self._line.serve()
        self._admission.wake()
        self._fleet.links.want(len(self), self._line.num_tokens)

    async def _place(self, attempt: PlacementAttempt, turn: AdmissionTicket) -> None:
        try:
            async with (
                asyncio.timeout(turn.time_left_s),
                self._limit_wait(None if turn.is_retry else turn.max_wait_s),
                self._replica_wait.while_replicas_may_start(),
            ):
                await self._admission.place(
                    lambda: attempt if self._enter(attempt) else None,
                    self._line.leave,
                    turn,
                    lambda: attempt if self._enter(attempt, may_wait=False) else None,
                )
                try:
                    await asyncio.shield(attempt.placed)
                except asyncio.CancelledError:
                    self._line.leave(attempt)
                    self.on_fleet_change()  # the next in line may enter
                    raise
        except TimeoutError:
            decode = self._fleet.view(PromptNames()).decode
            pool = "prefill" if decode.pool.is_open.any() else "decode"
            raise DeadlineExceeded(
                f"no room on any {pool} replica within {turn.time_left_s:.1f} s"
            ) from None

    @asynccontextmanager
    async def _limit_wait(self, max_wait_s: float | None) -> AsyncIterator[None]:
        """Raises Overloaded after `max_wait_s`."""
        try:
            async with asyncio.timeout(max_wait_s):
                yield
        except TimeoutError:
            raise Overloaded(
                f"no place came within {max_wait_s:g} s, and it may wait no longer",
                retry_after_s=self._admission.wait_s,
            ) from None

    def _may_admit_now(self) -> bool:
        return self._fleet.warm_up.is_over and self._line.lets_pass

    def _enter(self, attempt: PlacementAttempt, *, may_wait: bool = True) -> bool:
        return self._fleet.warm_up.is_over and self._line.enter(attempt, may_wait=may_wait)


def _waits(
    state: Literal["queued", "starting", "in_line"], position: int, num_tokens: int, left_s: float
) -> PromptProgress:
    eta_ms = round(left_s * 1e3, 1)
    return PromptProgress(state=state, position=position, total=num_tokens, eta_ms=eta_ms)
