"""When a failed call is worth repeating, and how long to wait before."""

from __future__ import annotations

import random
from dataclasses import dataclass

from baton.client.errors import BatonClientError, Overloaded, Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Waits grow from `first_delay_s` by `growth` up to `max_delay_s`, each shortened at random.

    The server's own advice, where it gives one, is the least that is waited.
    """

    max_attempts: int = 4
    first_delay_s: float = 0.2
    max_delay_s: float = 5.0
    growth: float = 2.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"a call takes at least one attempt: {self.max_attempts=}")

    def delay_s(self, error: BatonClientError, num_failed: int) -> float | None:
        """How long to wait after `num_failed` attempts, of which `error` ended the last one.

        None if another attempt is pointless or one too many. Only errors before any output may be
        asked about: a repeated generation would give its first tokens twice.
        """
        if num_failed >= self.max_attempts or not _is_passing(error):
            return None
        ceiling = min(self.max_delay_s, self.first_delay_s * self.growth ** (num_failed - 1))
        delay_s = random.uniform(ceiling / 2, ceiling)  # so that many clients do not return as one
        advised_s = error.retry_after_s if isinstance(error, Overloaded) else None
        return max(delay_s, advised_s or 0.0)


def _is_passing(error: BatonClientError) -> bool:
    if isinstance(error, Overloaded):
        return error.retry_after_s is not None
    return isinstance(error, Unavailable)
