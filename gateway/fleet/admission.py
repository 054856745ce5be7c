"""The queue for a place while there is none: requests of all tenants, before any work is done.

    place --> found at once, if nobody else is first, or it needs not what the first waits for
          '-> in line --wake--> placed        whose turn it is: `router/fairness/fair_queue.py`
                      '-> Overloaded          too many wait, or it would wait longer than it may

How long a wait is going to be is told by how fast places came lately: who is refused hears when to
come again. When no more may wait, the tenant with the most in line for its weight gives up its
last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from baton.core.clock import Clock, monotonic
from baton.core.errors import Overloaded
from baton.core.ids import RequestId
from baton.router.fairness.fair_queue import Entry, FairQueue
from baton.router.fairness.slo import UNHURRIED_S

T = TypeVar("T")

PACE_OF = 50
"""Places that the pace is a mean over, more or less."""
ENOUGH_PLACES = 8
"""Given to those who waited: the mean of fewer is no reason to refuse anybody."""


class AdmissionRate:
    """How often a place is given while somebody waits for one."""

    def __init__(self) -> None:
        self._mean_s = 0.0
        self._num = 0
        self._last_s = 0.0

    @property
    def is_known(self) -> bool:
        return self._num >= ENOUGH_PLACES

    def begin(self, now: float) -> None:
        """Somebody waits from now on, and nobody did before: not for long, or the pace of places is
        to be learnt anew."""
        if now - self._last_s > self._mean_s * ENOUGH_PLACES:
            self._num, self._mean_s = 0, 0.0
        self._last_s = now

    def give(self, now: float) -> None:
        self._num += 1
        self._mean_s += (now - self._last_s - self._mean_s) * max(1 / PACE_OF, 1 / self._num)
        self._last_s = now

    def wait_s(self, num_before: int, now: float) -> float:
        """Seconds until the place after so many others; longer if none has come for long."""
        return max(self._mean_s, now - self._last_s) + self._mean_s * num_before


@dataclass(slots=True, eq=False)
class _Waiter(Generic[T]):
    try_place: Callable[[], T | None]
    try_past: Callable[[], T | None]
    placed: asyncio.Future[T] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionTicket:
    """What decides who goes next, and who need not come."""

    request_id: RequestId | None = None
    """The request's id, for callers that ask how many go before it."""
    priority: int = 0
    tenant: str = ""
    is_retry: bool = False
    """It was placed before: served in part already."""
    max_wait_s: float | None = None
    """It would rather be refused than wait longer for a place."""
    time_left_s: float | None = None
    """Seconds until the request's deadline; None: it has none."""
    due_in_s: float = UNHURRIED_S
    """Seconds within which its objective wants its first token."""

    @property
    def patience_s(self) -> float | None:
        return min(
            (limit for limit in (self.max_wait_s, self.time_left_s) if limit is not None),
            default=None,
        )


class AdmissionQueue(Generic[T]):
    """`try_place` takes a place at once and returns it, or None while there is no room. `try_past`
    takes one that nobody before it waits for: it is tried once, while the queue `lets_pass`."""

    def __init__(
        self,
        max_waiting: int,
        weights: Mapping[str, float],
        clock: Clock = monotonic,
        lets_pass: Callable[[], bool] = lambda: False,
    ) -> None:
        self._lets_pass = lets_pass
        self._untried: dict[Entry[_Waiter[T]], None] = {}
        """Entries that have not tried to pass yet."""
        self._max_waiting = max_waiting
        self._clock = clock
        self._line: FairQueue[_Waiter[T]] = FairQueue(weights)
        self._pace = AdmissionRate()
        self._entry_by_request: dict[RequestId | None, Entry[_Waiter[T]]] = {}

    def reconfigure(self, max_waiting: int, weights: Mapping[str, float]) -> None:
        """Whoever waits already stays, also if fewer may."""
        self._max_waiting = max_waiting
        self._line.reweigh(weights)

    def __len__(self) -> int:
        return len(self._line)

    @property
    def wait_s(self) -> float:
        """Seconds until a place, behind all who wait."""
        return self._pace.wait_s(len(self), self._clock())

    def num_before(self, tenant: str, priority: int, due_in_s: float = UNHURRIED_S) -> int:
        """How many should go before one that would come now."""
        return self._line.num_before_new(
            tenant=tenant, priority=priority, due_in_s=due_in_s, now=self._clock()
        )

    def foreseen(self, request_id: RequestId) -> tuple[int, float] | None:
        """How many should go before one in line, and how long it takes to its place."""
        entry = self._entry_by_request.get(request_id)
        return None if entry is None else (self._line.num_before(entry), self._wait_s(entry))

    def charge(self, tenant: str, num_tokens: int) -> None:
        """So many tokens were computed for a tenant."""
        self._line.charge(tenant, num_tokens)

    async def place(
        self,
        try_place: Callable[[], T | None],
        give_back: Callable[[T], None],
        turn: AdmissionTicket,
        try_past: Callable[[], T | None] = lambda: None,
    ) -> T:
        """Wait for a place. Raises Overloaded if too many wait, at once or for another's sake.

        `give_back` returns a place that came just as the caller was cancelled.
        """
        waiter = _Waiter(try_place, try_past)
        if not self._line:
            self._pace.begin(self._clock())
        entry = self._line.add(
            waiter,
            tenant=turn.tenant,
            priority=turn.priority,
            is_retry=turn.is_retry,
            due_in_s=turn.due_in_s,
            now=self._clock(),
        )
        self._entry_by_request[turn.request_id] = entry
        try:
            if self._line.first() is entry:
                place = try_place()
                if place is not None:
                    self._line.serve(entry)
                    if self._line:
                        self._pace.give(self._clock())
                    return place
            self._untried[entry] = None
            self._let_pass()
            if waiter.placed.done():
                return waiter.placed.result()
            self._check_wait(entry, turn)
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
            self._line.remove(entry)
            self._untried.pop(entry, None)
            if self._entry_by_request.get(turn.request_id) is entry:
                del self._entry_by_request[turn.request_id]

    def wake(self) -> None:
        """Place as many as fit, in order. Called when room may have appeared."""
        while (entry := self._line.first()) is not None:
            waiter = entry.item
            if waiter.placed.done():  # its caller was cancelled
                self._line.remove(entry)
                continue
            try:
                place = waiter.try_place()
            except Exception as error:
                self._line.remove(entry)
                waiter.placed.set_exception(error)
                continue
            if place is None:
                self._let_pass()
                return
            self._line.serve(entry)
            self._pace.give(self._clock())
            waiter.placed.set_result(place)

    def _let_pass(self) -> None:
        """Whoever is first waits. Its pace is not theirs, who pass."""
        while self._untried and self._lets_pass():
            entry = next(iter(self._untried))
            del self._untried[entry]
            waiter = entry.item
            if waiter.placed.done():
                continue
            try:
                place = waiter.try_past()
            except Exception as error:
                self._line.remove(entry)
                waiter.placed.set_exception(error)
                continue
            if place is not None:
                self._line.serve(entry)
                waiter.placed.set_result(place)

    def _check_wait(self, entry: Entry[_Waiter[T]], turn: AdmissionTicket) -> None:
        """Refuse whom there is no use to keep; make room for `entry`. Raises Overloaded."""
        if turn.is_retry:
            return
        wait_s, num_before = self._wait_s(entry), len(self._line) - 1
        patience_s = turn.patience_s
        is_foreseen = num_before > 0 and self._pace.is_known  # the first in line tells the pace
        if patience_s is not None and is_foreseen and wait_s > patience_s:
            raise Overloaded(
                f"a place would come in {wait_s:.1f} s, and it can wait {patience_s:.1f} s",
                retry_after_s=wait_s - patience_s,
            )
        if num_before < self._max_waiting:
            return
        leaves = self._line.gives_way(entry) or entry
        error = Overloaded(
            f"{num_before} requests wait for a place already", retry_after_s=self._wait_s(leaves)
        )
        if leaves is entry:
            raise error
        self._line.remove(leaves)
        if not leaves.item.placed.done():
            leaves.item.placed.set_exception(error)

    def _wait_s(self, entry: Entry[_Waiter[T]]) -> float:
        return self._pace.wait_s(self._line.num_before(entry), self._clock())
