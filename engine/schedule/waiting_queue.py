"""Waiting requests, ordered by priority and arrival within each tenant. Only the first request of
each tenant, its head, is a candidate for admission.

    tenant a     a1  a2  a3 ...         heads: a1, b1, c1, ordered by `rank_waiting`
    tenant b     b1  b2
    tenant c     c1

The cost of adding a request, removing one and looking at the heads does not grow with the number
of waiting requests.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from itertools import chain

from baton.engine.request.request import Request


class WaitingQueue:
    """A request's `rank_waiting` must not change while it is in the queue."""

    def __init__(self) -> None:
        self._by_tenant: dict[str, list[Request]] = {}
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[Request]:
        """All requests, tenant by tenant."""
        return chain.from_iterable(self._by_tenant.values())

    @property
    def tenants(self) -> Collection[str]:
        return self._by_tenant.keys()

    def add(self, request: Request) -> None:
        insort(self._by_tenant.setdefault(request.tenant, []), request, key=rank_waiting)
        self._len += 1

    def discard(self, request: Request) -> None:
        """Remove a request; does nothing if it is not in the queue."""
        line = self._by_tenant.get(request.tenant, [])
        place = bisect_left(line, rank_waiting(request), key=rank_waiting)
        if place < len(line) and line[place] is request:
            del line[place]
            self._len -= 1
            if not line:
                del self._by_tenant[request.tenant]

    def first_of(self, tenant: str) -> Request | None:
        line = self._by_tenant.get(tenant)
        return line[0] if line else None

    def heads(self) -> list[Request]:
        """The first request of each tenant, in order."""
        return sorted((line[0] for line in self._by_tenant.values()), key=rank_waiting)

    def last_of(self, tenants: Collection[str]) -> Request | None:
        """The last request of all requests of `tenants`; None if they have none."""
        lines = (self._by_tenant[tenant] for tenant in tenants if tenant in self._by_tenant)
        return max((line[-1] for line in lines), key=rank_waiting, default=None)


def rank_waiting(request: Request) -> tuple[int, bool, int]:
    """Sort key of waiting requests: priority, then preempted ones first, then arrival."""
    return request.priority, not request.num_preemptions, request.arrival
