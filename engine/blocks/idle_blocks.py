"""Idle blocks: without references, but with cached contents; and the order in which to evict them.

    add --> evictable, least recently used first --> pop_oldest
              |   ^
             pin  unpin: returns to the front of the queue
              v   |
            pinned, never evicted

Each tenant has a queue of its own, so that one tenant's blocks can be evicted and another's kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator


class IdleBlocks:
    """Pure bookkeeping."""

    def __init__(self) -> None:
        self._queue_by_tenant: dict[str, OrderedDict[int, int]] = {}
        """By tenant: evictable block -> sequence number of when it became idle; oldest first."""
        self._pinned: dict[int, int] = {}
        """Pinned block -> sequence number of when it became idle."""
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
        """Tenants that have evictable blocks. A live view."""
        return self._queue_by_tenant.keys()

    def num_evictable(self, tenant: str) -> int:
        return len(self._queue_by_tenant.get(tenant, ()))

    def is_evictable(self, block: int) -> bool:
        return block in self._tenant_by_block and block not in self._pinned

    def tenant_of(self, block: int) -> str:
        """The tenant that an idle block counts for. Raises KeyError if the block is not idle."""
        return self._tenant_by_block[block]

    def add(self, block: int, tenant: str, *, is_pinned: bool) -> None:
        """Add a block that has just lost its last reference: the most recently used idle one."""
        self._num_added += 1
        self._tenant_by_block[block] = tenant
        if is_pinned:
            self._pinned[block] = self._num_added
        else:
            self._queue(tenant)[block] = self._num_added

    def remove(self, block: int) -> None:
        """Remove a block that is referenced again. Raises KeyError if it is not idle."""
        tenant = self._tenant_by_block.pop(block)
        if self._pinned.pop(block, None) is None:
            self._take_from(tenant, block)

    def pin(self, block: int) -> None:
        """Pin an idle block; does nothing if it is not idle or pinned already."""
        if self.is_evictable(block):
            self._pinned[block] = self._take_from(self._tenant_by_block[block], block)

    def unpin(self, block: int) -> None:
        """Unpin an idle block; does nothing if it is not idle or not pinned."""
        added = self._pinned.pop(block, None)
        if added is None:
            return
        queue = self._queue(self._tenant_by_block[block])
        # A queue must be ordered by its numbers, because `pop_oldest` compares their first ones.
        queue[block] = min(added, next(iter(queue.values()), added))
        queue.move_to_end(block, last=False)

    def pop_oldest(self, tenants: Iterable[str]) -> int:
        """Remove and return the least recently used evictable block of `tenants`. Raises KeyError
        if there is none."""
        oldest = min(
            (tenant for tenant in tenants if tenant in self._queue_by_tenant),
            key=lambda tenant: next(iter(self._queue_by_tenant[tenant].values())),
            default=None,
        )
        if oldest is None:
            raise KeyError("there is no evictable block")
        block = next(iter(self._queue_by_tenant[oldest]))
        self.remove(block)
        return block

    def clear(self) -> list[int]:
        """Remove all blocks and return them."""
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
