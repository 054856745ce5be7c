"""Who goes next when the decode replicas are full: by priority, and first come, first served.

A request that finds no room waits here, before any work is done for it. Requests that continue
after a lost replica go before the others of their priority, for they were already served in part.
A smaller priority always goes first: one that is large may wait for as long as smaller ones come.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

from baton.core.errors import Overloaded

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Waiter(Generic[T]):
    order: tuple[int, bool, int]
    """Priority, whether it comes for the first time, and its turn among equals."""
    try_place: Callable[[], T | None]
    placed: asyncio.Future[T] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class AdmissionQueue(Generic[T]):
    """`try_place` takes a place at once and returns it, or None while there is no room."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._waiters: list[_Waiter[T]] = []
        """In order: who goes next comes first."""
        self._turns = count()

    def __len__(self) -> int:
        return len(self._waiters)

    async def place(
        self,
        try_place: Callable[[], T | None],
        give_back: Callable[[T], None],
        *,
        is_retry: bool,
        priority: int = 0,
    ) -> T:
        """Wait for a place. Raises Overloaded at once if too many wait already.

        `give_back` returns a place that came just as the caller was cancelled.
        """
        waiter = _Waiter((priority, not is_retry, next(self._turns)), try_place)
        if not self._waiters or waiter.order < self._waiters[0].order:
            place = try_place()
            if place is not None:
                return place
        if len(self._waiters) >= self._max_waiting and not is_retry:
            raise Overloaded(f"{len(self._waiters)} requests wait for a decode replica already")
        insort(self._waiters, waiter, key=lambda one: one.order)
        try:
            return await waiter.placed
        except asyncio.CancelledError:
            if (
                waiter.placed.done()
                and not waiter.placed.cancelled()
                and not waiter.placed.exception()
            ):
                give_back(waiter.placed.result())
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def wake(self) -> None:
        """Place as many as fit, in order. Called when room may have appeared."""
        while self._waiters:
            waiter = self._waiters[0]
            if waiter.placed.done():  # its caller was cancelled
                self._waiters.pop(0)
                continue
            try:
                place = waiter.try_place()
            except Exception as error:
                self._waiters.pop(0)
                waiter.placed.set_exception(error)
                continue
            if place is None:
                return
            self._waiters.pop(0)
            waiter.placed.set_result(place)
