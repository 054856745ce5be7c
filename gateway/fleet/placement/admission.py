"""The queue of requests, of all tenants, for which no replica has room.

    place --> found at once, if no request is before it, or it needs other room than the first
          '-> in line --wake--> placed        in the order of `router/fairness/fair_queue.py`
                      '-> Overloaded          too many wait, or it would wait longer than it may

The line (`admission_line.py`) decides which request goes first, estimates waits, and refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from baton.core.clock import Clock, monotonic
from baton.core.ids import RequestId
from baton.gateway.fleet.placement.admission_line import AdmissionLine, AdmissionTicket
from baton.router.fairness.fair_queue import Entry
from baton.router.fairness.slo import UNHURRIED_S

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Waiter(Generic[T]):
    try_place: Callable[[], T | None]
    try_past: Callable[[], T | None]
    placed: asyncio.Future[T] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class AdmissionQueue(Generic[T]):
    """`try_place` takes a place at once and returns it, or None while there is no room. `try_past`
    takes a place for which no request before it waits; it is tried once, while the queue
    `lets_pass`."""

    def __init__(
        self,
        max_waiting: int,
        weights: Mapping[str, float],
        clock: Clock = monotonic,
        lets_pass: Callable[[], bool] = lambda: False,
    ) -> None:
        self._may_admit_now = lets_pass
        self._untried: dict[Entry[_Waiter[T]], None] = {}
        """Entries that have not tried to pass yet."""
        self._clock = clock
        self._line: AdmissionLine[_Waiter[T]] = AdmissionLine(max_waiting, weights)
        self._entry_by_request: dict[RequestId | None, Entry[_Waiter[T]]] = {}

    def reconfigure(self, max_waiting: int, weights: Mapping[str, float]) -> None:
        """Requests that wait already stay, also if fewer may wait."""
        self._line.reconfigure(max_waiting, weights)

    def __len__(self) -> int:
        return len(self._line)

    @property
    def wait_s(self) -> float:
        """Seconds until a new request would be admitted, behind all that wait."""
        return self._line.wait_s(self._clock())

    def num_before(self, tenant: str, priority: int, due_in_s: float = UNHURRIED_S) -> int:
        """The number of requests that would go before a new one."""
        return self._line.num_before_new(tenant, priority, due_in_s, self._clock())

    def foreseen(self, request_id: RequestId) -> tuple[int, float] | None:
        """The number of requests before one in line, and the seconds until its place."""
        entry = self._entry_by_request.get(request_id)
        if entry is None:
            return None
        return self._line.num_before(entry), self._line.wait_s(self._clock(), entry)

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Charge `num_tokens` computed tokens to a tenant."""
        self._line.charge(tenant, num_tokens)

    async def place(
        self,
        try_place: Callable[[], T | None],
        give_back: Callable[[T], None],
        turn: AdmissionTicket,
        try_past: Callable[[], T | None] = lambda: None,
    ) -> T:
        """Wait for a place. Raises Overloaded if too many wait: at once, or when a newer request
        takes its place in line. `give_back` returns a place that came just as the caller was
        cancelled.
        """
        waiter = _Waiter(try_place, try_past)
        entry = self._line.enter(waiter, turn, self._clock())
        self._entry_by_request[turn.request_id] = entry
        try:
            if self._line.first() is entry:
                place = try_place()
                if place is not None:
                    self._line.serve_at_once(entry, self._clock())
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
            self._line.serve(entry, self._clock())
            waiter.placed.set_result(place)

    def _let_pass(self) -> None:
        """Try the requests that may pass while the first one waits."""
        while self._untried and self._may_admit_now():
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
                self._line.serve_past(entry)
                waiter.placed.set_result(place)

    def _check_wait(self, entry: Entry[_Waiter[T]], turn: AdmissionTicket) -> None:
        """Refuse requests that would wait too long; make room for `entry`. Raises Overloaded."""
        refused = self._line.refused(entry, turn, self._clock())
        if refused is None:
            return
        if refused.entry is entry:
            raise refused.error
        if not refused.entry.item.placed.done():
            refused.entry.item.placed.set_exception(refused.error)
