"""The admission line as a value: whose turn it is, how long that takes, and who need not wait.

    enter --> entry    first, serve    its turn has come, and there was room
              refused  no use to wait, or too many do: the refused one is told when to come again

The length of a wait is estimated from how fast requests were admitted lately. When no more may
wait, the tenant with the most in line for its weight gives up its last request. The simulator's
gateways have the same line; `admission.py` is its shell in a live one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from baton.core.errors import Overloaded
from baton.core.ids import RequestId
from baton.router.fairness.fair_queue import Entry, FairQueue
from baton.router.fairness.slo import UNHURRIED_S

T = TypeVar("T")

PACE_OF = 50
"""Places that the pace is a mean over, more or less."""
ENOUGH_PLACES = 8
"""Admissions of waiting requests: the mean of fewer is no reason to refuse a request."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionTicket:
    """Decides which request goes next, and which need not wait."""

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


class Refused(NamedTuple, Generic[T]):
    """The entry that leaves the line, and what its caller is told."""

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
        """Every entry in line, in no order of their turns."""
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
        """Whose turn it is."""
        return self._queue.first()

    def serve(self, entry: Entry[T], now: float) -> None:
        """There was room for whose turn it was."""
        self._queue.serve(entry)
        self._pace.give(now)

    def serve_at_once(self, entry: Entry[T], now: float) -> None:
        """There was room as it came: that says something of the pace only if others wait."""
        self._queue.serve(entry)
        if self._queue:
            self._pace.give(now)

    def serve_past(self, entry: Entry[T]) -> None:
        """It did not need what the first waits for: its pace says nothing of theirs."""
        self._queue.serve(entry)

    def remove(self, entry: Entry[T]) -> None:
        """It waits no more. Safe to repeat."""
        self._queue.remove(entry)

    def charge(self, tenant: str, num_tokens: int) -> None:
        """So many tokens were computed for a tenant."""
        self._queue.charge(tenant, num_tokens)

    def num_before(self, entry: Entry[T]) -> int:
        """How many should go first."""
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
        """An entry that need not be kept, or that makes room for `entry`: it leaves the line. None:
        all stay."""
        if ticket.is_retry:
            return None
        wait_s, num_before = self.wait_s(now, entry), len(self) - 1
        patience_s = ticket.patience_s
        is_foreseen = num_before > 0 and self._pace.is_known  # the first in line tells the pace
        if patience_s is not None and is_foreseen and wait_s > patience_s:
            self.remove(entry)
            message = f"a place would come in {wait_s:.1f} s, and it can wait {patience_s:.1f} s"
            return Refused(entry, Overloaded(message, retry_after_s=wait_s - patience_s))
        if num_before < self._max_waiting:
            return None
        leaves = self._queue.gives_way(entry) or entry
        message = f"{num_before} requests wait for a place already"
        error = Overloaded(message, retry_after_s=self.wait_s(now, leaves))
        self.remove(leaves)
        return Refused(leaves, error)
