"""Asks again where one answer fails, while a command waits for what it has begun.

A busy gateway may miss an answer, and one that is replaced misses a few: what the command waits for
goes on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from baton.core.errors import Unavailable

PATIENCE_S = 30.0

T = TypeVar("T")


class AskingAgain(Generic[T]):
    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answered_at_s = time.monotonic()

    def __call__(self) -> T | None:
        """Ask once; None if that fails. Raises Unavailable if nothing else came for PATIENCE_S."""
        try:
            answer = self._ask()
        except Unavailable:
            if time.monotonic() - self._answered_at_s >= PATIENCE_S:
                raise
            return None
        self._answered_at_s = time.monotonic()
        return answer
