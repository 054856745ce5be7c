"""What it takes to draft so many tokens for all who ask, measured as it is done.

token by token     1: 0.7 ms   2: 1.1 ms     between them a line, and behind them, too
all at once        8: 0.9 ms                 so 4 take as long, and 16, until they were tried
"""

from __future__ import annotations

from collections import deque
from statistics import median_low

NUM_TIMES = 15
"""Drafts that the time of one depth is the median of."""


class DraftPrices:
    def __init__(self, *, at_once: bool = False) -> None:
        """`at_once`: deeper drafts are thought to take no longer than those that were tried."""
        self._at_once = at_once
        self._times: dict[int, deque[float]] = {}
        """Measured seconds of drafts, by depth."""

    def add(self, depth: int, seconds: float) -> None:
        self._times.setdefault(depth, deque(maxlen=NUM_TIMES)).append(seconds)

    def forget(self) -> None:
        self._times.clear()

    def seconds(self, depth: int) -> float:
        """Seconds of a draft of `depth` tokens; 0 before the first."""
        points = [(tried, median_low(self._times[tried])) for tried in sorted(self._times)]
        if not points:
            return 0.0
        below = [point for point in points if point[0] <= depth]
        above = [point for point in points if point[0] > depth]
        if above:
            first = (0, above[0][1] if self._at_once else 0.0)
            (start, start_s), (end, end_s) = below[-1] if below else first, above[0]
            return start_s + (end_s - start_s) * (depth - start) / (end - start)
        (last, last_s) = below[-1]
        return last_s + self._slope(below) * (depth - last)

    def _slope(self, points: list[tuple[int, float]]) -> float:
        """Seconds of a token more, behind all that were tried."""
        last, last_s = points[-1]
        if len(points) == 1:
            return 0.0 if self._at_once else last_s / last
        before, before_s = points[-2]
        return min(max(0.0, last_s - before_s) / (last - before), last_s / last)
