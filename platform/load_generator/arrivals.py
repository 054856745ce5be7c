"""Arrival times of an open loop: random, even, or in bursts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Requests come at `rate` a second on average, in bursts of `burst`."""

    rate: float
    burstiness: float | None = 1.0
    """The shape of the gamma distribution of the gaps between bursts: 1 is a Poisson process,
    less comes more clumped, more comes more evenly. None: the same gap always."""
    burst: int = 1

    def times(self, seed: int) -> Iterator[float]:
        """An endless iterator of seconds since the start. The first burst comes at once."""
        random_ = random.Random(f"arrivals {seed}")
        mean_gap_s = self.burst / self.rate
        now_s = 0.0
        while True:
            for _ in range(self.burst):
                yield now_s
            now_s += mean_gap_s * self._relative_gap(random_)

    def _relative_gap(self, random_: random.Random) -> float:
        if self.burstiness is None:
            return 1.0
        return random_.gammavariate(self.burstiness, 1.0 / self.burstiness)

    def __str__(self) -> str:
        match self.burstiness:
            case None:
                kind = "evenly"
            case 1.0:
                kind = "as a Poisson process"
            case shape:
                kind = f"with gamma gaps of shape {shape:g}"
        bursts = f", {self.burst} at once" if self.burst > 1 else ""
        return f"{self.rate:g} requests/s {kind}{bursts}"
