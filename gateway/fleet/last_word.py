"""What a replica said last of its capacity, and how old that is."""

from __future__ import annotations

from dataclasses import replace

from baton.core.clock import Clock
from baton.core.messages import Capacity


class LastWord:
    def __init__(self, clock: Clock) -> None:
        self.capacity: Capacity | None = None
        self._clock = clock
        self.heard_at_s: float | None = None
        """By the clock; None if nothing was said."""

    def hear(self, capacity: Capacity) -> Capacity:
        """The whole of it: how long steps take is not said each time."""
        self.heard_at_s = self._clock()
        if capacity.step_times is None and self.capacity is not None:
            capacity = replace(capacity, step_times=self.capacity.step_times)
        self.capacity = capacity
        return capacity

    def forget(self) -> None:
        self.capacity = None
        self.heard_at_s = None
