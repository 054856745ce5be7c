"""Blocks without references that keep their contents, and which of them to evict first.

    add --> evictable, least recently used first --> pop_oldest
              |   ^
             pin  unpin: back as the first to go, for its turn has long come
              v   |
            pinned, kept whatever happens

Each tenant has a queue of its own, so that one tenant's blocks can be evicted and another's kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator


class IdleBlocks:
    """Pure bookkeeping."""

    def __init__(self) -> None:
        self._queue_by_tenant: dict[str, OrderedDict[int, int]] = {}
        """Evictable block -> when it became idle, counted in such events; oldest first."""
        self._pinned: dict[int, int] = {}
        """Pinned block -> when it became idle, counted in such events."""
        self._tenant_by_block: dict[int, str] = {}
        self._num_added = 0

    def __len__(self) -> int:
        return len(self._tenant_by_block)

    def __contains__(self, block: object) -> bool:
        return block in self._tenant_by_block

    def __iter__(self) -> Iterator[int]:
        return iter(self._tenant_by_block)

    @property
    def tenants(self) -> Iterable[str]:
        """Tenants that have anything to give up. Live."""
        return self._queue_by_tenant.keys()

    def num_evictable(self, tenant: str) -> int:
        return len(self._queue_by_tenant.get(tenant, ()))

    def is_evictable(self, block: int) -> bool:
        return block in self._tenant_by_block and block not in self._pinned

    def tenant_of(self, block: int) -> str:
        """Raises KeyError if the block is not idle."""
        return self._tenant_by_block[block]

    def add(self, block: int, tenant: str, *, is_pinned: bool) -> None:
        """`block` has just been used for the last time, for now."""
        self._num_added += 1
        self._tenant_by_block[block] = tenant
        if is_pinned:
            self._pinned[block] = self._num_added
        else:
            self._queue(tenant)[block] = self._num_added

    def remove(self, block: int) -> None:
        """Raises KeyError if the block is not idle."""
        tenant = self._tenant_by_block.pop(block)
        if self._pinned.pop(block, None) is None:
            self._take_from(tenant, block)

    def pin(self, block: int) -> None:
        """Nothing happens to a block that is not idle, or is pinned already."""
        if self.is_evictable(block):
            self._pinned[block] = self._take_from(self._tenant_by_block[block], block)

    def unpin(self, block: int) -> None:
        """Nothing happens to a block that is not idle, or is not pinned."""
        added = self._pinned.pop(block, None)
        if added is None:
            return
        queue = self._queue(self._tenant_by_block[block])
        # The order of a queue must be that of its numbers: tenants are compared by their first.
        queue[block] = min(added, next(iter(queue.values()), added))
        queue.move_to_end(block, last=False)

    def pop_oldest(self, tenants: Iterable[str]) -> int:
        """The block that was used longest ago of those of `tenants`. Raises KeyError if none is."""
        oldest = min(
            (tenant for tenant in tenants if tenant in self._queue_by_tenant),
            key=lambda tenant: next(iter(self._queue_by_tenant[tenant].values())),
            default=None,
        )
        if oldest is None:
            raise KeyError("no idle block may be given up")
        block = next(iter(self._queue_by_tenant[oldest]))
        self.remove(block)
        return block

    def clear(self) -> list[int]:
        """Return what was there."""
        blocks = list(self._tenant_by_block)
        self._queue_by_tenant.clear()
        self._pinned.clear()
        self._tenant_by_block.clear()
        return blocks

    def _queue(self, tenant: str) -> OrderedDict[int, int]:
        return self._queue_by_tenant.setdefault(tenant, OrderedDict())

    def _take_from(self, tenant: str, block: int) -> int:
        queue = self._queue_by_tenant[tenant]
        added = queue.pop(block)
        if not queue:
            del self._queue_by_tenant[tenant]
        return added
