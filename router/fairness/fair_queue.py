"""The order of requests of several tenants: fair in tokens, by weight, whatever each asks.

    used     tokens computed for a tenant, over its weight
    next     of the tenants in line, the one with the least    used + typical * steps
    first    of one tenant's own, the one with the least       came + due in + 10 s * steps

`steps` is the priority of the tenant's first request, ten at most either way, and `typical` the
tokens of a request. A smaller priority is served sooner, on its tenant's account, so nobody waits
for ever behind urgent requests. While several tenants wait, each is served tokens in proportion to
its weight, except for what it has running (virtual token counters, Sheng et al. 2024; deficits in
bytes, Shreedhar and Varghese 1995). A tenant that comes back after a while without waiting requests
begins where the tenant that was served last stood before it was (start-time fair queueing, Goyal et
al. 1996), or at the least `used` of the waiting tenants, if that is less. So nothing can be saved
up, using what nobody else wanted is not held against a tenant, and a tenant that sends one request
at a time, again and again, gets its share.

Requests that were served in part go before all others: there are no more of them than have run.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

from baton.router.fairness.slo import UNHURRIED_S
from baton.router.fairness.turns import PRIORITY_S, bounded_steps

T = TypeVar("T")

TYPICAL_OF = 100
"""Requests that `typical` is a mean over, more or less."""


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    item: T
    tenant: str
    steps: int
    is_retry: bool
    order: tuple[float, int]
    """Among those of its tenant, or among retries: the least goes first, then the earliest."""


@dataclass(slots=True)
class _Tenant(Generic[T]):
    weight: float
    used: float = 0.0
    turn: int = -1
    """The last it had: of equals, the one that waited longer for one goes first."""
    line: list[Entry[T]] = field(default_factory=list)


class FairQueue(Generic[T]):
    """`weights` by tenant; a tenant that is not in it has 1."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._tenant_by_name: dict[str, _Tenant[T]] = {}
        """All tenants that ever came: they are configured, so there are few."""
        self._retries: list[Entry[T]] = []
        self._numbers, self._turns = count(), count()
        self._num = 0
        self._started_at = 0.0
        """`used` of the tenant that was served last, before that."""
        self._num_tokens = 0.0
        self._num_served = 0.0

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """Change weights; past usage is not rescaled."""
        self._weights = weights
        for name, tenant in self._tenant_by_name.items():
            tenant.weight = weights.get(name, 1.0)

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[Entry[T]]:
        """Every entry in line, in no order of their turns."""
        yield from tuple(self._retries)
        for tenant in tuple(self._tenant_by_name.values()):
            yield from tuple(tenant.line)

    @property
    def typical(self) -> float:
        """Tokens of a request."""
        return self._num_tokens / self._num_served if self._num_served else 1.0

    def add(
        self,
        item: T,
        *,
        tenant: str = "",
        priority: int = 0,
        is_retry: bool = False,
        due_in_s: float = UNHURRIED_S,
        now: float,
    ) -> Entry[T]:
        """`due_in_s`: seconds within which it is to have its first token."""
        steps = bounded_steps(priority)
        order = (now + due_in_s + PRIORITY_S * steps, next(self._numbers))
        entry = Entry(item, tenant, steps, is_retry, order)
        self._lift(tenant)
        insort(self._line(entry), entry, key=lambda one: one.order)
        self._num += 1
        return entry

    def remove(self, entry: Entry[T]) -> None:
        """It is served, or waits no more. Safe to repeat."""
        line = self._line(entry)
        place = bisect_left(line, entry.order, key=lambda one: one.order)
        if place < len(line) and line[place] is entry:
            del line[place]
            self._num -= 1

    def serve(self, entry: Entry[T]) -> None:
        """It has got a place; its tokens are charged as they are known."""
        self.remove(entry)
        keep = 1 - 1 / TYPICAL_OF
        self._num_tokens *= keep
        self._num_served = self._num_served * keep + 1
        tenant = self._tenant(entry.tenant)
        tenant.turn = next(self._turns)
        self._started_at = tenant.used

    def charge(self, name: str, num_tokens: int) -> None:
        """Charge a tenant for tokens that were, or are about to be, computed for it."""
        tenant = self._tenant(name)
        tenant.used += num_tokens / tenant.weight
        self._num_tokens += num_tokens

    def first(self) -> Entry[T] | None:
        """The entry to serve next."""
        if self._retries:
            return self._retries[0]
        in_line = [tenant for tenant in self._tenant_by_name.values() if tenant.line]
        if not in_line:
            return None
        typical = self.typical

        def order(tenant: _Tenant[T]) -> tuple[float, int, int]:
            first = tenant.line[0]
            return tenant.used + typical * first.steps, tenant.turn, first.order[1]

        return min(in_line, key=order).line[0]

    def choose_victim(self, newcomer: Entry[T]) -> Entry[T] | None:
        """The entry that leaves so that `newcomer`, in line already, may stay: the last of the
        tenant with the most in line for its weight. None if, one each later, that would be the
        newcomer's."""
        in_line = [tenant for tenant in self._tenant_by_name.values() if tenant.line]
        own = self._tenant(newcomer.tenant)
        longest = max(in_line, key=lambda one: len(one.line) / one.weight)
        if (len(longest.line) - 1) / longest.weight <= (len(own.line) - 1) / own.weight:
            return None
        return longest.line[-1]

    def num_before(self, entry: Entry[T]) -> int:
        """How many should go first, if all ask for about as much."""
        place = bisect_left(self._line(entry), entry.order, key=lambda one: one.order)
        return place if entry.is_retry else self._num_before(entry.tenant, place)

    def num_before_new(
        self, *, tenant: str, priority: int, due_in_s: float = UNHURRIED_S, now: float
    ) -> int:
        """The number that should go before an entry that would come now."""
        came = now + due_in_s + PRIORITY_S * bounded_steps(priority)
        line = self._tenant(tenant).line
        place = bisect_right(line, came, key=lambda one: one.order[0])
        return self._num_before(tenant, place)

    def _num_before(self, name: str, place: int) -> int:
        """`place`: among those of its tenant."""
        own = self._tenant(name)
        num = len(self._retries) + place
        for tenant in self._tenant_by_name.values():
            if tenant is not own:
                share = math.ceil((place + 1) * tenant.weight / own.weight)
                num += min(len(tenant.line), share)
        return num

    def _lift(self, name: str) -> None:
        tenant = self._tenant(name)
        if not tenant.line:
            waiting = [one.used for one in self._tenant_by_name.values() if one.line]
            tenant.used = max(tenant.used, min([*waiting, self._started_at]))

    def _line(self, entry: Entry[T]) -> list[Entry[T]]:
        return self._retries if entry.is_retry else self._tenant(entry.tenant).line

    def _tenant(self, name: str) -> _Tenant[T]:
        found = self._tenant_by_name.get(name)
        if found is None:
            found = self._tenant_by_name[name] = _Tenant(self._weights.get(name, 1.0))
        return found
