"""Time as a dependency. Decisions take `now` as a number; shells hold one of these clocks.

Clocks are monotonic and private to a process. What crosses a process is a duration left, in
milliseconds, because two machines never agree about the time.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def __call__(self) -> float:
        """Seconds on a clock that never goes back."""


monotonic: Clock = time.monotonic


class ManualClock:
    """A clock that tests advance, so that tests of time need no waiting."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a clock does not go back: {seconds=}")
        self.now += seconds


TICK_S = 0.25
MOST_UNSEEN_S = 0.5
"""Seconds after a tick beyond which time counts as none: the event loop stands still."""


class AwakeClock:
    """A clock that stands still while its event loop does: time in which nobody listened is no
    silence of others, whose words lie unread. Of a stall, `MOST_UNSEEN_S` at most are counted.

    Once started it belongs to that event loop, whose timers do not know of it: what is due by it
    may be due later. Before, it goes like its `clock`.
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._lost_s = 0.0
        self._ticked_at: float | None = None

    def __call__(self) -> float:
        now = self._clock()
        if self._ticked_at is not None:
            now = min(now, self._ticked_at + MOST_UNSEEN_S)
        return now - self._lost_s

    def start(self) -> None:
        """Begin to watch the running event loop. Safe to repeat."""
        if self._ticked_at is None:
            self._tick()

    def _tick(self) -> None:
        now = self._clock()
        if self._ticked_at is not None:
            self._lost_s += max(0.0, now - self._ticked_at - MOST_UNSEEN_S)
        self._ticked_at = now
        asyncio.get_running_loop().call_later(TICK_S, self._tick)
