"""Values from any thread that are handed on together: one call for all that came meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Gathering(Generic[T]):
    def __init__(
        self, post: Callable[[Callable[[], None]], object], take: Callable[[list[T]], None]
    ) -> None:
        """`post` has a function called, on the thread where `take` is to be given the values."""
        self._post = post
        self._take = take
        self._lock = threading.Lock()
        self._waiting: list[T] = []

    def add(self, value: T) -> None:
        """Raises what `post` raises, once for all that can be handed on no more."""
        with self._lock:
            self._waiting.append(value)
            is_first = len(self._waiting) == 1
        if is_first:
            self._post(self._hand_on)

    def _hand_on(self) -> None:
        with self._lock:
            values, self._waiting = self._waiting, []
        self._take(values)
