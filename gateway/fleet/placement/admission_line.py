"""The admission line as a value: the order of requests, their expected waits, and refusals.

    enter --> entry    first, serve    it is the first, and there was room
              refused  it would wait too long, or too many wait: with a time to retry

Waits are estimated from the recent rate of admissions. When the line is full, the tenant with the
most requests in line per weight loses its last one. The simulator uses the same line;
`admission.py` is the shell around it in a live gateway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from baton.core.errors import Overloaded
from baton.core.ids import RequestId
from baton.core.wording import count_of
from baton.router.fairness.fair_queue import Entry, FairQueue
from baton.router.fairness.slo import UNHURRIED_S

T = TypeVar("T")

PACE_OF = 50
"""The number of recent places over which the pace is averaged, roughly."""
ENOUGH_PLACES = 8
"""Admissions of waiting requests below which the mean is too uncertain to refuse a request."""


class AdmissionRate:
    """The rate at which places are given while requests wait."""

    def __init__(self) -> None:
        self._mean_s = 0.0
        self._num = 0
        self._last_s = 0.0

    @property
    def is_known(self) -> bool:
        return self._num >= ENOUGH_PLACES

    def begin(self, now: float) -> None:
        """The first request begins to wait. After a long time without waiting requests, the pace is
        learnt anew."""
        if now - self._last_s > self._mean_s * ENOUGH_PLACES:
            self._num, self._mean_s = 0, 0.0
        self._last_s = now

    def give(self, now: float) -> None:
        self._num += 1
        self._mean_s += (now - self._last_s - self._mean_s) * max(1 / PACE_OF, 1 / self._num)
        self._last_s = now

    def wait_s(self, num_before: int, now: float) -> float:
        """Seconds until the place after `num_before` others; longer if none was given for long."""
        return max(self._mean_s, now - self._last_s) + self._mean_s * num_before


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionTicket:
    """What the line knows of a request: its tenant, its priority and its deadlines."""

    request_id: RequestId | None = None
    """The request's id, for callers that ask how many go before it."""
    priority: int = 0
    tenant: str = ""
    is_retry: bool = False
    """It was placed before, and has been served in part."""
    max_wait_s: float | None = None
    """The longest wait for a place; it is refused if it would wait longer. None: no limit."""
    time_left_s: float | None = None
    """Seconds until the request's deadline; None: it has none."""
    due_in_s: float = UNHURRIED_S
    """Seconds until its first token is due by its objective."""

    @property
    def patience_s(self) -> float | None:
        return min(
            (limit for limit in (self.max_wait_s, self.time_left_s) if limit is not None),
            default=None,
        )


class Refused(NamedTuple, Generic[T]):
    """An entry that leaves the line, with the error for its caller."""

    entry: Entry[T]
    error: Overloaded


class AdmissionLine(Generic[T]):
    def __init__(self, max_waiting: int, weights: Mapping[str, float]) -> None:
        self._max_waiting = max_waiting
        self._queue: FairQueue[T] = FairQueue(weights)
        self._pace = AdmissionRate()

    def reconfigure(self, max_waiting: int, weights: Mapping[str, float]) -> None:
        """Requests that wait already stay, also if fewer may wait."""
        self._max_waiting = max_waiting
        self._queue.reweigh(weights)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Entry[T]]:
        """Every entry in line, in no particular order."""
        return iter(self._queue)

    def enter(self, item: T, ticket: AdmissionTicket, now: float) -> Entry[T]:
        """Take a place in line."""
        if not self._queue:
            self._pace.begin(now)
        return self._queue.add(
            item,
            tenant=ticket.tenant,
            priority=ticket.priority,
            is_retry=ticket.is_retry,
            due_in_s=ticket.due_in_s,
            now=now,
        )

    def first(self) -> Entry[T] | None:
        """The entry whose turn it is."""
        return self._queue.first()

    def serve(self, entry: Entry[T], now: float) -> None:
        """Remove the first entry, which was placed."""
        self._queue.serve(entry)
        self._pace.give(now)

    def serve_at_once(self, entry: Entry[T], now: float) -> None:
        """Count a request that was placed on arrival: it shows the pace only if others wait."""
        self._queue.serve(entry)
        if self._queue:
            self._pace.give(now)

    def serve_past(self, entry: Entry[T]) -> None:
        """Remove an entry that needed other room than the first: its wait says nothing about
        theirs."""
        self._queue.serve(entry)

    def remove(self, entry: Entry[T]) -> None:
        """Remove an entry that waits no more. Safe to repeat."""
        self._queue.remove(entry)

    def charge(self, tenant: str, num_tokens: int) -> None:
        """So many tokens were computed for a tenant."""
        self._queue.charge(tenant, num_tokens)

    def num_before(self, entry: Entry[T]) -> int:
        """The number of entries before this one."""
        return self._queue.num_before(entry)

    def num_before_new(self, tenant: str, priority: int, due_in_s: float, now: float) -> int:
        """How many should go before one that would come now."""
        return self._queue.num_before_new(
            tenant=tenant, priority=priority, due_in_s=due_in_s, now=now
        )

    def wait_s(self, now: float, entry: Entry[T] | None = None) -> float:
        """Seconds until `entry` is admitted, or a request behind all that wait."""
        num_before = len(self) if entry is None else self._queue.num_before(entry)
        return self._pace.wait_s(num_before, now)

    def refused(self, entry: Entry[T], ticket: AdmissionTicket, now: float) -> Refused[T] | None:
        """Remove and return the entry that is refused: `entry` itself, or one that makes room for
        it. None: all stay."""
        if ticket.is_retry:
            return None
        wait_s, num_before = self.wait_s(now, entry), len(self) - 1
        patience_s = ticket.patience_s
        is_foreseen = num_before > 0 and self._pace.is_known  # the first in line shows the pace
        if patience_s is not None and is_foreseen and wait_s > patience_s:
            self.remove(entry)
            message = f"a place would come in {wait_s:.1f} s, and it can wait {patience_s:.1f} s"
            return Refused(entry, Overloaded(message, retry_after_s=wait_s - patience_s))
        if num_before < self._max_waiting:
            return None
        leaves = self._queue.choose_victim(entry) or entry
        message = f"{count_of(num_before, 'request')} already waiting for a place"
        error = Overloaded(message, retry_after_s=self.wait_s(now, leaves))
        self.remove(leaves)
        return Refused(leaves, error)
