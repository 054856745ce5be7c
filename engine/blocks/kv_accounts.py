"""How many blocks each tenant holds, and how many it may hold.

    held = referenced + idle, cached or pinned      a block is on one account from taken to free

A tenant with a share of the pool never holds more than that, and no other tenant may evict what it
caches. Each of the others may hold what the shares leave; nothing is reserved for them. Free blocks
go to the first that asks.
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
        """Blocks held, by tenant: of those that hold any. Live."""
        return self._num_held

    def max_held(self, tenant: str) -> int:
        return self._kept.get(tenant, self._num_left_to_others)

    def num_kept(self, tenant: str) -> int:
        """Blocks of the tenant's that no other may have evicted."""
        return self._kept.get(tenant, 0)

    def num_held(self, tenant: str) -> int:
        return self._num_held.get(tenant, 0)

    def num_left(self, tenant: str) -> int:
        """Blocks it may take until it holds all it may."""
        return self.max_held(tenant) - self.num_held(tenant)

    def num_beyond_kept(self, tenant: str) -> int:
        """Blocks it holds that are not kept for it."""
        return max(0, self.num_held(tenant) - self.num_kept(tenant))

    def tenant_of(self, block: int) -> str:
        """Raises KeyError for a free block."""
        return self._tenant_by_block[block]

    def add(self, block: int, tenant: str) -> None:
        self._tenant_by_block[block] = tenant
        self._num_held[tenant] = self.num_held(tenant) + 1

    def remove(self, block: int) -> None:
        tenant = self._tenant_by_block.pop(block)
        self._num_held[tenant] -= 1
        if not self._num_held[tenant]:
            del self._num_held[tenant]
