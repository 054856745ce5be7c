"""Running code where the KV pool lives.

The pool belongs to the engine's thread, so whatever touches it from asyncio goes through this
door and runs between two engine steps, in the order it was handed in. What cannot disturb a step
may also run in the middle of one, between two layers: a transfer must not wait for a long prefill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import RLock
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

    def interject(self, function: Callable[[], T]) -> Awaitable[T]:
        """Like `call`, but soon: perhaps in the middle of a step, between two layers.

        What is interjected keeps its order, but may overtake what was called or posted. `function`
        may do with the pool what does not concern the blocks of requests: look at them, share
        them, take fresh ones, give up the references of a lease or a quarantine. It must leave
        requests, their references and the bytes of their blocks alone.

        That is harmless because a step touches only the blocks that its requests referenced when it
        was planned, and those references outlive it. A block that comes free in the middle, or is
        taken then, was not among them; and steps are planned where nothing is interjected.
        """


class Inline:
    """An owner without a thread, for tests: everything runs at once, where it is called.

    One at a time, though: who gives a piece back may do so on any thread.
    """

    def __init__(self) -> None:
        self._lock = RLock()

    async def call(self, function: Callable[[], T]) -> T:
        with self._lock:
            return function()

    def post(self, function: Callable[[], None]) -> None:
        with self._lock:
            function()

    async def interject(self, function: Callable[[], T]) -> T:
        return await self.call(function)


class OneThread:
    """An owner with a thread and nothing to do between commands, for tests and benchmarks."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1)

    def call(self, function: Callable[[], T]) -> Awaitable[T]:
        return asyncio.shield(asyncio.wrap_future(self._executor.submit(function)))

    def interject(self, function: Callable[[], T]) -> Awaitable[T]:
        return self.call(function)

    def post(self, function: Callable[[], None]) -> None:
        self._executor.submit(function)

    def stop(self) -> None:
        self._executor.shutdown()
