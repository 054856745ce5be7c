"""Running code where the KV pool lives.

The pool belongs to the engine's thread, so whatever touches it from asyncio goes through this
door and runs between two engine steps, in the order it was handed in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class OwnerThread(Protocol):
    def call(self, function: Callable[[], T]) -> Awaitable[T]:
        """Run `function` on the owner's thread and await its result or exception.

        Runs even if the awaiting task is cancelled meanwhile. Raises EngineFailed if the
        thread has died.
        """

    def post(self, function: Callable[[], None]) -> None:
        """Like `call`, for when nobody waits; an exception counts as the owner's failure."""


class Inline:
    """An owner without a thread, for tests: everything runs at once, where it is called."""

    async def call(self, function: Callable[[], T]) -> T:
        return function()

    def post(self, function: Callable[[], None]) -> None:
        function()
