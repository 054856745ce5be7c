"""How far off predictions were of late, and what that says of the next one.

    error = log(actual / predicted)

The interval of a prediction holds what the errors of those nearest to it in size say: of the last
few hundred, the middle 90 %. Its ends are order statistics of exchangeable errors (split conformal
prediction, Vovk et al. 2005), so they cover what comes next about as often as they say, whatever
the errors' distribution; until enough are heard, guesses stand in for them.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

COVERAGE = 0.9
MAX_KEPT = 512
NUM_NEAREST = 128
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
        self._heard: deque[tuple[float, float]] = deque(maxlen=MAX_KEPT)
        """Logarithm of what was predicted, and the error."""

    def __len__(self) -> int:
        return len(self._heard)

    def hear(self, predicted_s: float, actual_s: float) -> None:
        log_predicted = math.log(max(predicted_s, LEAST_S))
        self._heard.append((log_predicted, math.log(max(actual_s, LEAST_S)) - log_predicted))

    def interval(self, predicted_s: float, spread: float = 0.0) -> Interval:
        """`spread`: how far off the replica's own fit is, by its own word."""
        log_predicted = math.log(max(predicted_s, LEAST_S))
        nearest = sorted(self._heard, key=lambda heard: abs(heard[0] - log_predicted))
        errors = [error for _, error in nearest[:NUM_NEAREST]]
        guess = max(GUESS, 3 * math.log1p(spread))
        num_missing = NUM_GUESSED - len(errors)
        errors += [guess * (1 - 2 * (place % 2)) for place in range(num_missing)]
        errors.sort()
        outside = (len(errors) + 1) * (1 - COVERAGE) / 2
        lowest = max(math.floor(outside), 1) - 1
        middle = sum(errors[(len(errors) - 1) // 2 : len(errors) // 2 + 1])
        middle /= 2 - len(errors) % 2
        return Interval(
            low=predicted_s * math.exp(errors[lowest]),
            middle=predicted_s * math.exp(middle),
            high=predicted_s * math.exp(errors[-1 - lowest]),
        )
