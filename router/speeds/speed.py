"""How long a replica takes to compute a prompt: by its own measurements, or by a rate for all."""

from __future__ import annotations

import math
from dataclasses import dataclass

from baton.core.step_times import StepTimes
from baton.router.speeds.coefficients import SpeedCoefficients

LONGEST = 1 << 30
"""Tokens: no prompt has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantRate:
    """Prompts one after the other, always as fast."""

    tokens_per_s: float

    @property
    def is_measured(self) -> bool:
        return False

    @property
    def pace(self) -> SpeedCoefficients:
        return SpeedCoefficients(tokens_per_s=self.tokens_per_s)

    def prefill_s(self, num_tokens: int, num_cached: int) -> float:
        """At least one token is computed: the last, whose logits give the first output token."""
        return max(num_tokens - num_cached, 1) / self.tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    """The speed by the fit that a replica makes of its own steps; slower when its steps take longer
    of late.

    One that is faster of late than its fit is not believed to stay so.
    """

    times: StepTimes
    max_chunk: int
    """Tokens of one prompt in one pass."""
    slowness: float = 1.0

    @property
    def is_sound(self) -> bool:
        """Whether any prompt takes some time by it, and none for ever."""
        if self.max_chunk < 1:
            return False
        return self.prefill_s(1, 0) > 0 and math.isfinite(self.prefill_s(LONGEST, 0))

    @property
    def is_measured(self) -> bool:
        return True

    @property
    def pace(self) -> SpeedCoefficients:
        times, slowness = self.times, max(self.slowness, 1.0)
        return SpeedCoefficients(
            step_s=(times.constant_s + times.request_s) * slowness,
            token_s=times.token_s * slowness,
            pair_s=times.pair_s * slowness,
            max_chunk=self.max_chunk,
        )

    def prefill_s(self, num_tokens: int, num_cached: int) -> float:
        num_cached = min(num_cached, num_tokens - 1)
        seconds = self.times.prefill_s(num_tokens, num_cached, self.max_chunk)
        return seconds * max(self.slowness, 1.0)
