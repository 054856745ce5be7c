"""The queue for decode replicas while all are full: by priority, then by tenants in turn.

    a a a a b b c    wait; served are    a b c | a b | a | a        a round has one of each tenant

A request that finds no room waits here, before any work is done for it. Requests that continue
after a lost replica go before the others of their priority, for they were already served in part.
A smaller priority always goes first: one that is large may wait for as long as smaller ones come.
When no more may wait, the tenant with the most in line gives up its last for one of another's.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

from baton.core.errors import Overloaded

T = TypeVar("T")
_Rank = tuple[int, bool]


@dataclass(slots=True, eq=False)
class _Waiter(Generic[T]):
    order: tuple[int, bool, int, int]
    """Priority, whether it comes for the first time, its round, and its turn among equals."""
    tenant: str
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
        self._round: dict[_Rank, int] = {}
        """The last one of which somebody was served, of those of a rank."""
        self._last_round: dict[tuple[_Rank, str], int] = {}
        """The round of the last in line, by rank and tenant."""

    def __len__(self) -> int:
        return len(self._waiters)

    async def place(
        self,
        try_place: Callable[[], T | None],
        give_back: Callable[[T], None],
        *,
        is_retry: bool,
        priority: int = 0,
        tenant: str = "",
    ) -> T:
        """Wait for a place. Raises Overloaded if too many wait, at once or for another's sake.

        `give_back` returns a place that came just as the caller was cancelled.
        """
        if not self._waiters:
            self._round.clear()
            self._last_round.clear()
        rank = (priority, not is_retry)
        number = max(self._round.get(rank, 0), self._last_round.get((rank, tenant), -1) + 1)
        waiter = _Waiter((*rank, number, next(self._turns)), tenant, try_place)
        if not self._waiters or waiter.order < self._waiters[0].order:
            place = try_place()
            if place is not None:
                return place
        if len(self._waiters) >= self._max_waiting and not is_retry:
            self._push_out(tenant)
        self._last_round[rank, tenant] = number
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
            self._round[waiter.order[:2]] = waiter.order[2]
            waiter.placed.set_result(place)

    def _push_out(self, tenant: str) -> None:
        """Make room for one of `tenant`. Raises Overloaded if no other has more in line."""
        error = Overloaded(f"{len(self._waiters)} requests wait for a decode replica already")
        in_line = Counter(waiter.tenant for waiter in self._waiters if waiter.order[1])
        [(longest, num_longest)] = in_line.most_common(1) or [(tenant, 0)]
        if num_longest <= in_line[tenant] + 1:
            raise error
        last = next(w for w in reversed(self._waiters) if w.tenant == longest and w.order[1])
        self._waiters.remove(last)
        if not last.placed.done():
            last.placed.set_exception(error)
