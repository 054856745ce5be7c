"""What a replica said last of its capacity, and how old that is."""

from __future__ import annotations

from dataclasses import replace

from baton.core.clock import Clock
from baton.core.messages import Capacity


class LastWord:
    def __init__(self, clock: Clock) -> None:
        self.capacity: Capacity | None = None
        self._clock = clock
        self._heard_at = 0.0

    @property
    def age_s(self) -> float | None:
        """None if nothing was said."""
        return None if self.capacity is None else self._clock() - self._heard_at

    def hear(self, capacity: Capacity) -> Capacity:
        """The whole of it: how long steps take is not said each time."""
        self._heard_at = self._clock()
        if capacity.step_times is None and self.capacity is not None:
            capacity = replace(capacity, step_times=self.capacity.step_times)
        self.capacity = capacity
        return capacity

    def forget(self) -> None:
        self.capacity = None
