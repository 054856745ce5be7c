"""Requests that did not fit, so that none is tried again before that could help: trying may hash a
long prompt in every step.

    a request     until a block is released
    all           likewise, or until another request comes or one leaves
    over share    requests that wait because their tenant is at its block limit, not because the
                  pool is full: they hold up requests of their tenant alone
"""

from __future__ import annotations

from baton.engine.blocks.block_pool import BlockPool
from baton.engine.request.request import Request


class Refusals:
    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._of_all_at: int | None = None
        """`pool.num_releases` at the time when no waiting request could be admitted; None when
        admission is worth trying again."""
        self._by_tenant: dict[str, tuple[Request, int]] = {}
        """By tenant: its first waiting request that did not fit, and `pool.num_releases` at that
        time."""
        self._over_share: set[Request] = set()

    @property
    def are_of_all(self) -> bool:
        """Whether no waiting request could be admitted and no block has been released since."""
        return self._of_all_at == self._pool.num_releases

    def refuse_all(self) -> None:
        self._of_all_at = self._pool.num_releases

    def reconsider(self) -> None:
        """Another request has come, or one has left: some may fit now."""
        self._of_all_at = None

    def stands(self, request: Request) -> bool:
        """Whether `request` did not fit and no block has been released since."""
        return self._by_tenant.get(request.tenant) == (request, self._pool.num_releases)

    def refuse(self, request: Request) -> None:
        self._by_tenant[request.tenant] = request, self._pool.num_releases
        self.note_share(request)

    def note_share(self, request: Request) -> None:
        """Note whether `request`, which did not fit, waits because its tenant is at its limit."""
        if self._pool.supply.is_at_limit(request.tenant):
            self._over_share.add(request)
        else:
            self._over_share.discard(request)

    def is_over_share(self, request: Request) -> bool:
        return request in self._over_share

    def forget(self, tenant: str) -> None:
        """A request of `tenant` has left, or was preempted: all of its others may fit now."""
        self.reconsider()
        self._by_tenant.pop(tenant, None)
        if self._over_share:
            self._over_share = {other for other in self._over_share if other.tenant != tenant}
