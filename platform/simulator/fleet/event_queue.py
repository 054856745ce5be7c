"""A queue of events in simulated time; events at the same time are in order of insertion."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf


class EventQueue:
    """A `baton.core.clock.Clock`, too."""

    def __init__(self) -> None:
        self.now = 0.0
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._places = count()

    def __call__(self) -> float:
        return self.now

    @property
    def next_s(self) -> float:
        """Time of the next event; infinite if there is none."""
        return self._entries[0][0] if self._entries else inf

    def at(self, at_s: float, what: Callable[[], None]) -> None:
        heappush(self._entries, (max(at_s, self.now), next(self._places), what))

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self.at(self.now + seconds, what)

    def run_next(self) -> None:
        """Let the next event happen."""
        self.now, _, what = heappop(self._entries)
        what()
