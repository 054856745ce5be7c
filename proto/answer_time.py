"""How long one peer may take to answer before it counts as silent. Pure.

    answered after t        --> at least `MARGIN` times t: well, but busy
    answered after all      --> twice what it was given: it was not silent, but slower than that
    as time goes by         --> half of what was added is gone after each `HALF_LIFE_S`

Never less than `least_s`, nor more than `MOST_S`.
"""

from __future__ import annotations

from math import exp2

MARGIN = 3.0
MOST_S = 5.0
HALF_LIFE_S = 30.0


class AnswerTime:
    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._added_s = 0.0
        self._added_at = 0.0

    def allowed_s(self, now: float) -> float:
        num_half_lives = (now - self._added_at) / HALF_LIFE_S
        return self._least_s + self._added_s * exp2(-num_half_lives)

    def answered(self, after_s: float, now: float) -> None:
        """It was asked, and did answer, in time or not."""
        allowed_s = self.allowed_s(now)
        learnt_s = 2 * allowed_s if after_s > allowed_s else MARGIN * after_s
        if learnt_s > allowed_s:
            self._added_s = max(0.0, min(learnt_s, MOST_S) - self._least_s)
            self._added_at = now
