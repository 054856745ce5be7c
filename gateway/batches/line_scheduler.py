"""When lines of batches run: in the capacity that interactive requests leave.

starts     while at most `max_running` run, or `max_beside` beside interactive requests; less than a
share of the places is taken; and no request waits for one goes on    to its end, as a rule given up
the youngest, one for each who has waited for `PATIENCE_S`, or for each place that
           replicas have taken back for another gateway; it runs again later
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from baton.core.clock import Clock, monotonic
from baton.gateway.requests.generations.generation import DecodeRoom

T = TypeVar("T")

LOOK_S = 0.05
REST_LOOK_S = 1.0
"""Seconds between looks while there are no lines."""
PATIENCE_S = 0.25
BESIDE_S = 2.0
"""Seconds after the last interactive request during which more are expected."""


class LinePreempted(Exception):
    """A running line was given up; it runs again later."""


class LineScheduler:
    """Schedules the lines of all batches of one gateway, in the order in which they asked."""

    def __init__(
        self,
        room: Callable[[], DecodeRoom],
        *,
        max_running: int,
        max_beside: int,
        max_share: float,
        clock: Clock = monotonic,
    ) -> None:
        self._room = room
        self._max_running = max_running
        self._max_beside = min(max_beside, max_running)
        self._max_share = max_share
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._running: dict[asyncio.Future[Any], None] = {}
        """Lines that run, in the order in which they began."""
        self._num_running = 0
        """Lines that run, and those that may begin."""
        self._given_up: set[asyncio.Future[Any]] = set()
        self._crowded_since: float | None = None
        self._is_alone_from = 0.0
        """The time from which no interactive requests are expected."""
        self._is_asked = asyncio.Event()
        """Set when a line comes; cleared by `watch` when there are none."""

    async def run(self, line: Callable[[], Awaitable[T]]) -> T:
        """Raises LinePreempted, and what `line` raises."""
        await self._turn()
        running = asyncio.ensure_future(line())
        self._running[running] = None
        try:
            return await running
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if running in self._given_up and not (own and own.cancelling()):
                raise LinePreempted from None
            raise
        finally:
            del self._running[running]
            self._given_up.discard(running)
            self._end()

    async def watch(self) -> None:
        """Check for interactive requests, for ever, and let lines begin or give them up."""
        while True:
            if self._running or self._waiting:
                await asyncio.sleep(LOOK_S)
            else:
                self._is_asked.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(REST_LOOK_S):
                        await self._is_asked.wait()
            self._look()
            self._start()

    async def _turn(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if not self._is_asked.is_set():
            self._is_asked.set()
            self._look()
        self._start()
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():
                self._end()
            raise

    def _end(self) -> None:
        self._num_running -= 1
        self._start()

    def _start(self) -> None:
        num_may = self._num_may_start() if self._waiting else 0
        while num_may > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._num_running += 1
                num_may -= 1

    def _num_may_start(self) -> int:
        room = self._room()
        if room.num_waiting or not room.num_places:
            return 0
        num_allowed = max(1, int(room.num_places * self._max_share))
        num_taken = room.num_awaited + self._num_running  # these have no place at once
        is_alone = self._clock() >= self._is_alone_from
        max_running = self._max_running if is_alone else self._max_beside
        return min(max_running - self._num_running, num_allowed - num_taken)

    def _look(self) -> None:
        """Count interactive requests, and give lines up for those that wait."""
        room, now = self._room(), self._clock()
        if room.num_waiting or room.num_awaited:
            self._is_alone_from = now + BESIDE_S
        num_over = max(room.num_waiting, room.num_taken - room.num_places)
        if num_over <= 0 or not self._running:
            self._crowded_since = None
        elif self._crowded_since is None:
            self._crowded_since = now
        elif now - self._crowded_since >= PATIENCE_S:
            self._crowded_since = now
            for line in list(reversed(self._running))[:num_over]:
                if line not in self._given_up:  # or it is on its way out, and cleans up
                    self._given_up.add(line)
                    line.cancel()
