"""Measured times of steps without drafts, and with a number of draft tokens.

    plain(8 requests)                 4.1 ms      all requests decode
    ratio(8 requests, 16 drafted)     1.7         times of a plain step
    row_s                             0.2 ms      one more row in a pass that computes prompts, too

Times are kept in a table and not fitted by a line, because a pass with a few more rows may take no
longer (the weights are read once for all rows) or twice as long (another kernel is used, or a
register tile is full: on a CPU after eight or ten rows). Small numbers of draft tokens have an
entry each, and a number between two measured ones is assumed to cost next to nothing until it is
tried. Times are medians of a few recent steps; the first step of a kind is left out, as it may
compile kernels or find caches cold.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from math import log2
from statistics import median_low

FIRST_SLOPE, LEAST_SLOPE = 0.2, 0.02
"""Assumed cost of one more row, as a share of a plain step's time per request: before any was
measured; and at least, beyond the largest measured number."""
NUM_RECENT = 7
"""Number of recent steps whose median time counts."""
NUM_EXACT, OFFSET = 8, 2
"""Up to `NUM_EXACT` draft tokens each number has its own table entry. Larger numbers share the
entries of `_roughly`, shifted by `OFFSET` to follow on."""
DEPTHS = (1, 2, 4, 8)
"""Draft tokens per request with which `row_price` is evaluated."""
MIN_SAMPLES = 3
"""Number of plain steps to measure before steps with drafts are compared with them."""


@dataclass(slots=True)
class _Recent:
    value: float = 0.0
    """Median of the recent values; of the two middle ones the smaller."""
    num_samples: int = 0
    _is_first: bool = True
    _values: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_RECENT))

    def add(self, value: float) -> None:
        if self._is_first:
            self._is_first = False
            return
        self._values.append(value)
        self.value, self.num_samples = median_low(self._values), len(self._values)

    def forget(self) -> None:
        """Forget all values. The next one counts: it is not the first of its kind."""
        self._values.clear()
        self.value, self.num_samples = 0.0, 0


@dataclass(slots=True)
class _Tried:
    """The ratios measured with about the same number of requests."""

    by_place: dict[int, float]
    nums_drafted: list[float]
    ratios: list[float]
    """Both lists are in order of the number of draft tokens."""


@dataclass(slots=True)
class StepPrices:
    _plain: dict[int, _Recent] = field(default_factory=dict)
    _ratios: dict[int, dict[int, _Recent]] = field(default_factory=dict)
    """Times of steps with drafts over those without: by range of the number of requests, then by
    table entry of the number of draft tokens."""
    _tried: dict[int, _Tried] = field(default_factory=dict)
    """A cache of `_tried_with`; an entry is dropped when its ratios change."""
    _row: _Recent = field(default_factory=_Recent)

    def add(self, num_requests: int, num_drafted: int, seconds: float) -> None:
        """Add a step of `num_requests` decoding requests and no prompts."""
        if not num_drafted:
            number = _finely(num_requests)
            recent = self._plain.get(number) or self._plain.setdefault(number, _Recent())
            recent.add(seconds)
        elif plain_s := self.plain_s(num_requests):
            number, place = _roughly(num_requests), _place(num_drafted)
            ratios = self._ratios.setdefault(number, {})
            recent = ratios.get(place) or ratios.setdefault(place, _Recent())
            before = recent.value
            recent.add(seconds / plain_s)
            if recent.value != before or recent.num_samples == 1:
                self._tried.pop(number, None)

    def add_mixed(self, num_rows: int, seconds: float) -> None:
        """Add a step of `num_rows` tokens, draft tokens included, that computed prompts, too."""
        self._row.add(seconds / num_rows)

    def plain_s(self, num_requests: int) -> float | None:
        """Seconds of a step without drafts; None if too few were measured."""
        recent = self._plain.get(_finely(num_requests))
        return None if recent is None or recent.num_samples < MIN_SAMPLES else recent.value

    @property
    def row_s(self) -> float | None:
        """Seconds of one more row in a pass that computes prompts, which is bound by arithmetic;
        None before the first such step."""
        return self._row.value if self._row.num_samples else None

    def max_tried(self, num_requests: int) -> int:
        """Most draft tokens of any measured step with about this number of requests."""
        tried = self._tried_with(num_requests).nums_drafted
        return int(tried[-1]) if tried else 0

    def ratio(self, num_requests: int, num_drafted: int) -> float:
        """Time of a step with `num_drafted` draft tokens, in times of a plain step: as measured, or
        interpolated between the nearest measured numbers."""
        tried = self._tried_with(num_requests)
        measured = tried.by_place.get(_place(num_drafted))
        if measured is not None:
            return measured
        nums, ratios = tried.nums_drafted, tried.ratios
        above = bisect_left(nums, num_drafted)
        start, ratio = (nums[above - 1], ratios[above - 1]) if above else (0.0, 1.0)
        if above < len(nums):
            slope = (ratios[above] - ratio) / (nums[above] - start)
            if above and num_drafted <= NUM_EXACT:
                slope = min(slope, LEAST_SLOPE / num_requests)
        elif above > 1:  # with one measured number the slope from 0 says little: use FIRST_SLOPE
            slope = (ratio - ratios[above - 2]) / (start - nums[above - 2])
            slope = max(slope, LEAST_SLOPE / num_requests)
        else:
            slope = FIRST_SLOPE / num_requests
        return ratio + slope * (num_drafted - start)

    def row_price(self, num_requests: int) -> float | None:
        """Least cost of verifying one draft token, in tokens that plain decoding would produce in
        the same time; None if the time of a plain step is not known."""
        if self.plain_s(num_requests) is None:
            return None
        return min((self.ratio(num_requests, k * num_requests) - 1) / k for k in DEPTHS)

    def forget_drafted(self) -> None:
        """Forget the times of steps with drafts, which may have been measured at a bad moment."""
        for ratios in self._ratios.values():
            for recent in ratios.values():
                recent.forget()
        self._tried.clear()

    def _tried_with(self, num_requests: int) -> _Tried:
        number = _roughly(num_requests)
        tried = self._tried.get(number)
        if tried is None:
            ratios = self._ratios.get(number, {})
            places = sorted([place for place, recent in ratios.items() if recent.num_samples])
            values = [ratios[place].value for place in places]
            by_place = dict(zip(places, values, strict=True))
            tried = self._tried[number] = _Tried(by_place, list(map(_number, places)), values)
        return tried


@cache
def _finely(number: int) -> int:
    """The range that `number` falls into: eight ranges per factor of two."""
    return round(8 * log2(number))


@cache
def _roughly(number: int) -> int:
    """The range that `number` falls into: two ranges per factor of two."""
    return round(2 * log2(number))


@cache
def _place(num_drafted: int) -> int:
    """The table entry of this number of draft tokens."""
    return num_drafted if num_drafted <= NUM_EXACT else _roughly(num_drafted) + OFFSET


def _number(place: int) -> float:
    """The number of draft tokens in the middle of this table entry."""
    return place if place <= NUM_EXACT else 2 ** ((place - OFFSET) / 2)
