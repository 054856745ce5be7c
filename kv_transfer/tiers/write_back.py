"""Copies computed blocks into the tiers before their memory on the device is needed.

    engine's thread   named --> waiting --> held, by a LEASE each --.             .--> let go
    copy thread                                                      copy, checksum
    tiers                                                                         `--> put

Only full, named blocks are copied, in the order in which they were named, each once. A held block
cannot be reused, so their number is bounded; a block that is evicted while it waits is counted and
not written. By the time a block is evicted it has most likely been copied, and the eviction costs
nothing.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from baton.core.ids import TransferId
from baton.core.kv_pool import BlockSource, Holder, HolderKind, KvPool
from baton.core.owner_thread import OwnerThread
from baton.kv_transfer.tiers.media.record import BlockRecord
from baton.kv_transfer.tiers.stack import TierStack

log = logging.getLogger(__name__)

MAX_WAITING = 1 << 16
"""Names, not blocks: a few MiB."""


@dataclass(slots=True)
class _Copying:
    name: bytes
    is_invalid: bool = False


class WriteBack:
    """A `NameFollower`; everything but `_copy` is on the owner's thread."""

    def __init__(
        self, pool: KvPool, owner: OwnerThread, stack: TierStack, *, max_held_blocks: int
    ) -> None:
        self.num_missed = 0
        """Blocks that were reused before their turn to be copied came."""
        self._pool = pool
        self._owner = owner
        self._stack = stack
        self._max_held = min(max_held_blocks, max(1, pool.num_blocks // 8))
        self._waiting: OrderedDict[bytes, None] = OrderedDict()
        self._copying: dict[str, _Copying] = {}
        """Copies under way, by the id of the lease that holds the block."""
        self._num_held = 0
        self._is_posted = False
        self._is_closed = False
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="baton-write-back")

    @property
    def lease_ids(self) -> frozenset[TransferId]:
        """The leases that hold blocks, for the auditor."""
        return frozenset(TransferId(lease_id) for lease_id in self._copying)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def named(self, name: bytes) -> None:
        """See `NameFollower`."""
        if self._is_closed or name in self._waiting or self._stack.holds(name):
            return
        self._waiting[name] = None
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popitem(last=False)
            self.num_missed += 1
        if not self._is_posted:
            self._is_posted = True
            self._owner.post(self._turn)

    def invalidated(self, name: bytes) -> None:
        """See `NameFollower`."""
        self._waiting.pop(name, None)
        for copying in self._copying.values():
            copying.is_invalid |= copying.name == name
        self._stack.discard(name)

    def close(self) -> None:
        """From any thread: nothing more is begun; what is held is let go by its own thread."""
        self._is_closed = True
        self._copier.shutdown(wait=True)

    def _turn(self) -> None:
        """Hold the next blocks, as many as may be held."""
        self._is_posted = False
        while self._waiting and len(self._copying) < self._max_held and not self._is_closed:
            name, _ = self._waiting.popitem(last=False)
            if self._stack.holds(name):
                continue
            self._num_held += 1
            holder = Holder(HolderKind.LEASE, f"write-back-{self._num_held}")
            if not self._pool.hold_named(holder, name):
                self.num_missed += 1
                continue
            planes = range(self._pool.layout.num_planes)
            sources = [self._pool.source(holder, 0, 1, range(plane, plane + 1)) for plane in planes]
            self._copying[holder.id] = _Copying(name)
            try:
                self._copier.submit(self._copy, holder, name, sources)
            except RuntimeError:  # closed meanwhile
                self._copied(holder, None)

    def _copy(self, holder: Holder, name: bytes, sources: Sequence[BlockSource]) -> None:
        """On the copy thread."""
        record: BlockRecord | None = None
        try:
            payload = b"".join(view for source in sources for view in source.views(range(1), 0, 1))
            record = self._stack.format.make(name, payload)
        except Exception:  # out of memory, or a device that fails: the engine will tell
            log.exception("a block of KV could not be copied to the tiers")
        finally:
            self._owner.post(partial(self._copied, holder, record))

    def _copied(self, holder: Holder, record: BlockRecord | None) -> None:
        self._pool.release(holder)
        copying = self._copying.pop(holder.id)
        if record is None:
            self.num_missed += 1
        elif not copying.is_invalid:
            self._stack.put(record)
        self._turn()
