"""What steps take, without drafts and with a number of drafted tokens, measured as they run.

    plain(8 requests)                 4.1 ms      all decode
    ratio(8 requests, 16 drafted)     1.7 of that
    row_s                             0.2 ms      one more row beside prompts

It is a table and not a line: a pass with a few more rows may be free (the weights are read once for
all of them) or twice as long (another kernel takes it, or a tile of registers is full: on a CPU
after eight or ten rows). So small numbers of drafted tokens have a price each, and a number between
two that were tried is tried as if it were free. Prices are medians of a few recent steps, without
the first step of a kind, which compiles, or finds everything cold.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from math import log2
from statistics import median_low

FIRST_SLOPE, LEAST_SLOPE = 0.2, 0.02
"""What a row more is thought to add as long as none was tried, in shares of a request; and what at
least, behind those that were tried."""
NUM_RECENT = 7
"""Steps that the median is of."""
NUM_EXACT, OFFSET = 8, 2
"""Drafted tokens up to which each number has its price; behind it the places go on as those of
`_roughly`, by so much later."""
DEPTHS = (1, 2, 4, 8)
"""Drafted tokens of each request by which one is priced."""
MIN_SAMPLES = 3
"""Least steps without drafts before there is a price for those with drafts."""


@dataclass(slots=True)
class _Recent:
    value: float = 0.0
    """Their median; of two the smaller."""
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
        """The next is not the first of its kind."""
        self._values.clear()
        self.value, self.num_samples = 0.0, 0


@dataclass(slots=True)
class _Tried:
    """The ratios that were measured with so many requests, about."""

    by_place: dict[int, float]
    nums_drafted: list[float]
    ratios: list[float]
    """In order of the drafted tokens."""


@dataclass(slots=True)
class StepPrices:
    _plain: dict[int, _Recent] = field(default_factory=dict)
    _ratios: dict[int, dict[int, _Recent]] = field(default_factory=dict)
    """Times of steps with drafts over those without, by number of requests, then of drafted
    tokens."""
    _tried: dict[int, _Tried] = field(default_factory=dict)
    """What `_ratios` come to, where it was asked for since they last changed."""
    _row: _Recent = field(default_factory=_Recent)

    def add(self, num_requests: int, num_drafted: int, seconds: float) -> None:
        """A step in which all decoded."""
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
        """A step of so many tokens, drafted ones among them, that computed prompts, too."""
        self._row.add(seconds / num_rows)

    def plain_s(self, num_requests: int) -> float | None:
        """Seconds of a step without drafts; None if it is not known yet."""
        recent = self._plain.get(_finely(num_requests))
        return None if recent is None or recent.num_samples < MIN_SAMPLES else recent.value

    @property
    def row_s(self) -> float | None:
        """Seconds of a row more beside prompts, whose passes are bound by arithmetic."""
        return self._row.value if self._row.num_samples else None

    def max_tried(self, num_requests: int) -> int:
        """Drafted tokens of the largest step there was with so many requests, about."""
        tried = self._tried_with(num_requests).nums_drafted
        return int(tried[-1]) if tried else 0

    def ratio(self, num_requests: int, num_drafted: int) -> float:
        """What a step takes with drafts, in steps without."""
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
        elif above > 1:  # not from 0 on: the first row has a price of its own
            slope = (ratio - ratios[above - 2]) / (start - nums[above - 2])
            slope = max(slope, LEAST_SLOPE / num_requests)
        else:
            slope = FIRST_SLOPE / num_requests
        return ratio + slope * (num_drafted - start)

    def row_price(self, num_requests: int) -> float | None:
        """What a drafted token costs at least, in tokens of a step without, by what is known now;
        None if that step's time is not."""
        if self.plain_s(num_requests) is None:
            return None
        return min((self.ratio(num_requests, k * num_requests) - 1) / k for k in DEPTHS)

    def forget_drafted(self) -> None:
        """Steps with drafts shall be tried anew: what was measured may have been a bad moment."""
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
    return round(8 * log2(number))


@cache
def _roughly(number: int) -> int:
    return round(2 * log2(number))


@cache
def _place(num_drafted: int) -> int:
    """Which price of the table it has."""
    return num_drafted if num_drafted <= NUM_EXACT else _roughly(num_drafted) + OFFSET


def _number(place: int) -> float:
    """Drafted tokens that have about this price."""
    return place if place <= NUM_EXACT else 2 ** ((place - OFFSET) / 2)
