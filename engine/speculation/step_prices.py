"""What steps take in which all decode, without drafts and with so many, measured as they run.

    plain(8 requests)                 4.1 ms
    ratio(8 requests, 16 drafted)     1.7 of that

A table and not a line: a pass of a few more rows may be free (the weights are read once for all of
them) or twice as long (another kernel takes it).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log2

FIRST_SLOPE, LEAST_SLOPE = 0.2, 0.02
"""What a row more is thought to add as long as none was tried, in shares of a request; and what at
least, behind those that were tried."""
WEIGHT = 0.15
"""Of a measured step, against all before it."""
MAX_STALL = 3.0
"""A step that takes more times what it used to counts as if it took so many."""
MIN_SAMPLES = 3
"""Of steps without drafts, before there is a price for those with drafts."""


@dataclass(slots=True)
class _Mean:
    value: float = 0.0
    num_samples: int = 0

    def add(self, value: float) -> None:
        self.num_samples += 1
        if self.num_samples > MIN_SAMPLES:
            value = min(value, MAX_STALL * self.value)
        self.value += (value - self.value) * max(WEIGHT, 1 / self.num_samples)


@dataclass(slots=True)
class StepPrices:
    _plain: dict[int, _Mean] = field(default_factory=dict)
    _ratios: dict[int, dict[int, _Mean]] = field(default_factory=dict)
    """By number of requests, and of drafted tokens."""

    def add(self, num_requests: int, num_drafted: int, seconds: float) -> None:
        if not num_drafted:
            self._plain.setdefault(_finely(num_requests), _Mean()).add(seconds)
        elif plain_s := self.plain_s(num_requests):
            ratios = self._ratios.setdefault(_roughly(num_requests), {})
            ratios.setdefault(_roughly(num_drafted), _Mean()).add(seconds / plain_s)

    def plain_s(self, num_requests: int) -> float | None:
        """Seconds of a step without drafts; None if it is not known yet."""
        mean = self._plain.get(_finely(num_requests))
        return None if mean is None or mean.num_samples < MIN_SAMPLES else mean.value

    def max_tried(self, num_requests: int) -> int:
        """Drafted tokens of the largest step there was with so many requests, about."""
        tried = self._ratios.get(_roughly(num_requests))
        return int(2 ** (max(tried) / 2)) if tried else 0

    def ratio(self, num_requests: int, num_drafted: int) -> float:
        """What a step takes with drafts, in steps without."""
        ratios, place = self._ratios.get(_roughly(num_requests), {}), _roughly(num_drafted)
        if place in ratios:
            return ratios[place].value
        points = [(2 ** (tried / 2), ratios[tried].value) for tried in sorted(ratios)]
        below = [point for point in points if point[0] < num_drafted]
        above = [point for point in points if point[0] >= num_drafted]
        start, ratio = below[-1] if below else (0.0, 1.0)
        if above:
            slope = (above[0][1] - ratio) / (above[0][0] - start)
        elif len(below) > 1:  # not from 0 on: the first row has a price of its own
            slope = (ratio - below[-2][1]) / (start - below[-2][0])
            slope = max(slope, LEAST_SLOPE / num_requests)
        else:
            slope = FIRST_SLOPE / num_requests
        return ratio + slope * (num_drafted - start)

    def forget_drafted(self) -> None:
        """Steps with drafts shall be tried anew: what was measured may have been a bad moment."""
        self._ratios.clear()


def _finely(number: int) -> int:
    return round(8 * log2(number))


def _roughly(number: int) -> int:
    return round(2 * log2(number))
