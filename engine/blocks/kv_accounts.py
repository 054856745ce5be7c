"""Counts how many blocks each tenant holds, and limits how many it may hold.

    held = referenced + idle (cached or pinned)     a block counts for one tenant from taken to free

A tenant with a reserved share never holds more than that, and no other tenant may evict what it
caches. Each other tenant may hold what the shares leave, and nothing is reserved for it. Free
blocks are given out first come, first served.
"""

from __future__ import annotations

from collections.abc import Mapping


class KvAccounts:
    """Pure bookkeeping."""

    def __init__(self, num_blocks: int, share_by_tenant: Mapping[str, float]) -> None:
        self._kept = {
            tenant: max(1, int(share * num_blocks)) for tenant, share in share_by_tenant.items()
        }
        self._num_left_to_others = max(0, num_blocks - sum(self._kept.values()))
        self._tenant_by_block: dict[int, str] = {}
        self._num_held: dict[str, int] = {}

    @property
    def num_held_by_tenant(self) -> dict[str, int]:
        """Blocks held, by tenant, without tenants that hold none. A live view."""
        return self._num_held

    def max_held(self, tenant: str) -> int:
        """Most blocks that `tenant` may hold."""
        return self._kept.get(tenant, self._num_left_to_others)

    def num_kept(self, tenant: str) -> int:
        """Blocks reserved for `tenant`: its share, or 0."""
        return self._kept.get(tenant, 0)

    def num_held(self, tenant: str) -> int:
        return self._num_held.get(tenant, 0)

    def num_left(self, tenant: str) -> int:
        """Blocks that `tenant` may still take until it is at its limit."""
        return self.max_held(tenant) - self.num_held(tenant)

    def num_beyond_kept(self, tenant: str) -> int:
        """Blocks that `tenant` holds beyond its reserved share."""
        return max(0, self.num_held(tenant) - self.num_kept(tenant))

    def tenant_of(self, block: int) -> str:
        """The tenant that `block` counts for. Raises KeyError for a free block."""
        return self._tenant_by_block[block]

    def add(self, block: int, tenant: str) -> None:
        self._tenant_by_block[block] = tenant
        self._num_held[tenant] = self.num_held(tenant) + 1

    def remove(self, block: int) -> None:
        tenant = self._tenant_by_block.pop(block)
        self._num_held[tenant] -= 1
        if not self._num_held[tenant]:
            del self._num_held[tenant]
