"""Schedules a replica's capacity reports to one gateway.

    more or less credit, draining, the first word   at once
    anything else                                   within `COALESCE_S`, or with the next frame
    nothing for `HEARTBEAT_S`                       the same again, so that silence means failure
    nothing, and it has nothing to do               after twice as long each time, until it is
                                                    `IDLE_HEARTBEAT_S`: the silence of an idle
                                                    replica means little

Step times are sent with the first word and with each heartbeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from baton.core.replicas import HEARTBEAT_S, IDLE_HEARTBEAT_S, Capacity
from baton.core.step_times import StepTimes

COALESCE_S = 0.1


class CapacityReporter:
    """Belongs to an event loop; `on_due` is called when something is to be sent."""

    def __init__(
        self,
        on_due: Callable[[], None],
        step_times: Callable[[], StepTimes | None],
        heartbeat_s: float = HEARTBEAT_S,
        idle_heartbeat_s: float = IDLE_HEARTBEAT_S,
    ) -> None:
        self._on_due = on_due
        self._step_times = step_times
        self._heartbeat_s = heartbeat_s
        self._idle_heartbeat_s = idle_heartbeat_s
        self._beat_s = heartbeat_s
        """Seconds from the last report to the next."""
        self._capacity = Capacity()
        self._sent: Capacity | None = None
        self._is_beat_due = True
        self._soon: asyncio.TimerHandle | None = None
        """Runs while a capacity waits for a frame to go with."""
        self._beat: asyncio.TimerHandle | None = None

    def put(self, capacity: Capacity) -> None:
        if capacity == self._capacity:
            return
        before, self._capacity = self._sent or Capacity(), capacity
        if _what_opens(capacity) != _what_opens(before):
            self._on_due()
        elif self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(COALESCE_S, self._on_due)

    def take(self) -> Capacity | None:
        """The report to send now; None if nothing is new."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        is_known = self._sent is None and self._capacity == Capacity()
        is_new = self._capacity != self._sent
        if is_known or not (is_new or self._is_beat_due):
            return None
        self._sent, news = self._capacity, self._capacity
        if self._is_beat_due:
            self._is_beat_due = False
            news = replace(news, step_times=self._step_times())
            self._wait_to_beat(is_at_rest=not is_new and news.is_at_rest)
        elif self._beat_s > self._heartbeat_s:  # no longer idle
            self._wait_to_beat(is_at_rest=False)
        return news

    def close(self) -> None:
        """The gateway is gone. Safe to repeat."""
        for timer in (self._soon, self._beat):
            if timer is not None:
                timer.cancel()

    def _wait_to_beat(self, *, is_at_rest: bool) -> None:
        if self._beat is not None:
            self._beat.cancel()
        longer_s = min(2 * self._beat_s, self._idle_heartbeat_s)
        self._beat_s = longer_s if is_at_rest else self._heartbeat_s
        self._beat = asyncio.get_running_loop().call_later(self._beat_s, self._beat_now)

    def _beat_now(self) -> None:
        self._is_beat_due = True
        self._on_due()


def _what_opens(capacity: Capacity) -> tuple[int, int, bool]:
    """The parts of a capacity that a waiting gateway waits for."""
    return capacity.credit_id, capacity.max_open, capacity.is_draining
