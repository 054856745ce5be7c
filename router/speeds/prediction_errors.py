"""How far off recent predictions were, and what that says of the next one.

    error = log(actual / predicted)

The interval of a prediction comes from the errors of the predictions nearest to it in size: of the
last few hundred, the middle 90 %. Its ends are order statistics of exchangeable errors (split
conformal prediction, Vovk et al. 2005), so they cover the next value about as often as they claim,
whatever the errors' distribution; until there are enough, guesses stand in for them. While loads
change, older errors say too little: each miss moves the ends outward a little, each hit inward
(adaptive conformal inference, Gibbs & Candes 2021).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

COVERAGE = 0.9
PATIENCE = 0.02
"""How far one miss moves the share that the interval is to leave outside."""
MAX_KEPT = 256
NUM_NEAREST = 96
NUM_GUESSED = 20
"""Fewer errors are made up to as many by guesses: the 5th and the 95th percentile need 19."""
GUESS = math.log(2.0)
"""Twice as long, or half."""
LEAST_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Seconds."""

    low: float
    middle: float
    high: float


class PredictionErrors:
    def __init__(self) -> None:
        self._observed: deque[tuple[float, float]] = deque(maxlen=MAX_KEPT)
        """Logarithm of what was predicted, and the error."""
        self._outside = 1 - COVERAGE

    def __len__(self) -> int:
        return len(self._observed)

    def observe(self, predicted_s: float, actual_s: float) -> None:
        expected = self.interval(predicted_s)
        is_miss = not expected.low <= actual_s <= expected.high
        moved = self._outside + PATIENCE * (1 - COVERAGE - is_miss)
        self._outside = min(max(moved, 0.0), 2 * (1 - COVERAGE))
        log_predicted = math.log(max(predicted_s, LEAST_S))
        self._observed.append((log_predicted, math.log(max(actual_s, LEAST_S)) - log_predicted))

    def interval(self, predicted_s: float, spread: float = 0.0) -> Interval:
        """`spread`: how far off the replica's own fit is, by its own word."""
        log_predicted = math.log(max(predicted_s, LEAST_S))
        newest_first = reversed(self._observed)  # of equally near ones the newest count
        nearest = sorted(newest_first, key=lambda one: abs(one[0] - log_predicted))
        errors = [error for _, error in nearest[:NUM_NEAREST]]
        guess = max(GUESS, 3 * math.log1p(spread))
        num_missing = NUM_GUESSED - len(errors)
        errors += [guess * (1 - 2 * (place % 2)) for place in range(num_missing)]
        errors.sort()
        outside = (len(errors) + 1) * self._outside / 2
        lowest = max(math.floor(outside), 1) - 1
        middle = sum(errors[(len(errors) - 1) // 2 : len(errors) // 2 + 1])
        middle /= 2 - len(errors) % 2
        return Interval(
            low=predicted_s * math.exp(errors[lowest]),
            middle=predicted_s * math.exp(middle),
            high=predicted_s * math.exp(errors[-1 - lowest]),
        )
