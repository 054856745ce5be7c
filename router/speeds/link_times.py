"""How long KV takes from one replica to another: measured for each pair, by the pulls between them.

    seconds = latency + bytes / rate            the straight line through recent pulls

A pair's line begins as that of all pairs, which counts as half an observation of no bytes and half
an observation of as many bytes as the current one. Each observation counts a fifth less with each
that follows. After five minutes without news a pair counts as the average again, so a link that was
slow is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from baton.core.ids import Epoch
from baton.router.recent import Recent

FORGET_S = 300.0
PATIENCE = 0.2
"""Weight of the last observation in what is believed."""
PRIOR = 0.5
"""Weight, in observations, of each of the two points of all pairs' line."""
MAX_PAIRS = 20_000
APART, APART_S = 0.25, 0.001
"""Least distance from all pairs' line, as a share of its seconds and in seconds: a pair that is
less off counts as all others, so that what is computed for a prompt does not grow with the pairs
that are known."""
APART_WEIGHT = 2.0
"""Least weight of the samples of a pair that stands apart: one late transfer is chance."""
LEAST_S = 1e-12
"""The least seconds per byte: a slope is never zero or negative."""

Pair: TypeAlias = tuple[Epoch, Epoch]
"""The lender and the taker."""


class LinkTime(NamedTuple):
    latency_s: float
    bytes_per_s: float

    def seconds(self, num_bytes: float) -> float:
        return self.latency_s + num_bytes / self.bytes_per_s


class _Sums(NamedTuple):
    """Sums over weighted observations: their weights, bytes, seconds, and products of these."""

    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def left(self, share: float) -> _Sums:
        return _Sums(*(share * one for one in self))

    def plus(self, weight: float, x: float, y: float) -> _Sums:
        weighted = (weight, weight * x, weight * y, weight * x * x, weight * x * y)
        return _Sums(*(one + other for one, other in zip(self, weighted, strict=True)))

    @property
    def line(self) -> LinkTime:
        """The least-squares line; observations of at least two sizes are in it."""
        slope = (self.weight * self.xy - self.x * self.y) / (self.weight * self.xx - self.x**2)
        slope = max(slope, LEAST_S)
        return LinkTime(max((self.y - slope * self.x) / self.weight, 0.0), 1.0 / slope)


@dataclass(frozen=True, slots=True)
class _PairHistory:
    sums: _Sums
    line: LinkTime
    at_s: float


class LinkTimes:
    """Latency and bandwidth of the pairs with recent samples."""

    def __init__(self, max_pairs: int = MAX_PAIRS) -> None:
        self._history_by_pair: Recent[Pair, _PairHistory] = Recent(max_pairs)
        self._takers_by_lender: dict[Epoch, set[Epoch]] = {}
        self._lenders_by_taker: dict[Epoch, set[Epoch]] = {}
        """Lenders by taker, of the pairs that take clearly longer or less than others."""
        self._now = 0.0

    def of(self, pair: Pair) -> LinkTime | None:
        """None: nothing is known of it, so it is as all others."""
        history = self._history_by_pair.get(pair) if self._history_by_pair else None
        if history is None or self._now - history.at_s > FORGET_S:
            return None
        return history.line

    def from_lender(self, lender: Epoch) -> dict[Epoch, LinkTime]:
        """Link times by taker, of those clearly nearer to this lender, or farther, than others
        are."""
        takers = self._takers_by_lender.get(lender)
        if takers is None:
            return {}
        found = {taker: self.of((lender, taker)) for taker in takers}
        return {taker: line for taker, line in found.items() if line is not None}

    def to_taker(self, taker: Epoch) -> dict[Epoch, LinkTime]:
        """Link times by lender, of those clearly nearer to this taker, or farther, than others
        are."""
        lenders = self._lenders_by_taker.get(taker)
        if lenders is None:
            return {}
        found = {lender: self.of((lender, taker)) for lender in lenders}
        return {lender: line for lender, line in found.items() if line is not None}

    def pass_to(self, now: float) -> None:
        """It is that late."""
        self._now = now

    def observe(self, pair: Pair, num_bytes: float, seconds: float, usual: LinkTime) -> None:
        """KV went from one to the other just now; at least one byte."""
        history = self._history_by_pair.get(pair)
        is_new = history is None or self._now - history.at_s > FORGET_S
        before = _Sums() if is_new or history is None else history.sums.left(1.0 - PATIENCE)
        sums = before.plus(1.0, num_bytes, seconds)
        anchored = sums.plus(PRIOR, 0.0, usual.latency_s)
        anchored = anchored.plus(PRIOR, num_bytes, usual.seconds(num_bytes))
        line = anchored.line
        forgotten = self._history_by_pair.put(pair, _PairHistory(sums, line, self._now))
        if forgotten is not None:
            self._set_apart(forgotten, is_apart=False)
        off_s = abs(line.seconds(num_bytes) - usual.seconds(num_bytes))
        is_apart = sums.weight > APART_WEIGHT and off_s > max(
            APART * usual.seconds(num_bytes), APART_S
        )
        self._set_apart(pair, is_apart=is_apart)

    def _set_apart(self, pair: Pair, *, is_apart: bool) -> None:
        lender, taker = pair
        for by_epoch, one, other in (
            (self._takers_by_lender, lender, taker),
            (self._lenders_by_taker, taker, lender),
        ):
            others = by_epoch.setdefault(one, set())
            others.add(other) if is_apart else others.discard(other)
            if not others:
                del by_epoch[one]
