"""Retries of failed calls: which, when, and until when."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from baton.client.errors import (
    BatonClientError,
    Overloaded,
    Unavailable,
    invalid_request,
    out_of_time,
)

MAX_TIMEOUT_S = 1e8
"""Three years. gRPC turns much longer limits into past ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Waits grow from `first_delay_s` by `growth` up to `max_delay_s`, each shortened at random.

    A retry-after of the server is the least wait.
    """

    max_attempts: int = 4
    first_delay_s: float = 0.2
    max_delay_s: float = 5.0
    growth: float = 2.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, not {self.max_attempts}")

    def delay_s(self, error: BatonClientError, num_failed: int) -> float | None:
        """How long to wait after `num_failed` attempts, of which `error` ended the last one.

        None if another attempt is pointless or one too many.
        """
        if num_failed >= self.max_attempts or not _is_passing(error):
            return None
        ceiling = self._ceiling_s(num_failed)
        delay_s = random.uniform(ceiling / 2, ceiling)  # so that many clients do not return as one
        advised_s = error.retry_after_s if isinstance(error, Overloaded) else None
        return max(delay_s, advised_s or 0.0)

    def _ceiling_s(self, num_failed: int) -> float:
        try:
            grown_s = self.first_delay_s * self.growth ** (num_failed - 1)
        except OverflowError:  # who repeats a call for hours comes as far
            return self.max_delay_s
        return min(self.max_delay_s, grown_s)


class Attempts:
    """The attempts of one call under one deadline. The caller waits."""

    def __init__(
        self,
        policy: RetryPolicy,
        timeout_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._ends_at = clock() + timeout_s
        self._num_failed = 0

    @property
    def time_left_s(self) -> float:
        return max(0.0, self._ends_at - self._clock())

    def made_progress(self) -> None:
        """Reset the failure count after progress."""
        self._num_failed = 0

    def delay_s_after(self, error: BatonClientError) -> float:
        """How long to wait before the next attempt. Raises if `error` is the end of it."""
        self._num_failed += 1
        delay_s = self._policy.delay_s(error, self._num_failed)
        if delay_s is None:
            raise error
        if delay_s >= self.time_left_s:
            raise error if self.time_left_s else out_of_time(error) from error
        return delay_s


def checked_timeout_s(timeout_s: float) -> float:
    """The timeout, at most gRPC's longest. Raises InvalidRequest for an invalid one."""
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise invalid_request(
            f"timeout_s must be a positive number of seconds, not {timeout_s}", field="timeout_s"
        )
    return min(timeout_s, MAX_TIMEOUT_S)


def _is_passing(error: BatonClientError) -> bool:
    if isinstance(error, Overloaded):
        return error.retry_after_s is not None
    return isinstance(error, Unavailable)
