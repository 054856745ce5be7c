"""Time as a dependency. Decisions take `now` as a number; shells hold one of these clocks.

Clocks are monotonic and private to a process. What crosses a process is a duration left, in
milliseconds, because two machines never agree about the time.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def __call__(self) -> float:
        """Seconds on a clock that never goes back."""


monotonic: Clock = time.monotonic


class ManualClock:
    """A clock that moves when told to, so that tests of time need no waiting."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a clock does not go back: {seconds=}")
        self.now += seconds
