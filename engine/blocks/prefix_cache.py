"""The prefix cache: which block has which name, and which idle block to evict first.

A named block is full, computed and never written again; its name (`baton.core.block_hash`) is a
hash of all tokens up to its end. A named block without references is *idle*: it can be matched
again, or is evicted, least recently used first. A block whose name is pinned is not evicted while
its pin lasts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from baton.engine.blocks.cache_pins import CachePins, Pin
from baton.engine.blocks.idle_blocks import IdleBlocks
from baton.engine.blocks.kv_event_log import KvEventLog


class Match(NamedTuple):
    """The cached blocks of a prefix."""

    blocks: list[int]
    names: list[bytes]
    """The names of these blocks."""
    unknown: bytes | None
    """The first name that no block has; None if all were found."""


class PrefixCache:
    """Pure bookkeeping. Reference counts are kept by the pool."""

    def __init__(self) -> None:
        self.log: KvEventLog | None = None
        """Records which names are stored and evicted, if the cache is followed."""
        self._block_by_name: dict[bytes, int] = {}
        self._name_by_block: dict[int, bytes] = {}
        self._idle = IdleBlocks()
        self._pins = CachePins()

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def idle(self) -> array[int]:
        """Idle blocks: without references, with cached contents."""
        return array("i", self._idle)

    def names(self) -> Iterable[bytes]:
        """All names. A live view: read it before the next change."""
        return self._block_by_name.keys()

    def names_of(self, blocks: Iterable[int]) -> bytes:
        """The names that these blocks have at this moment, end to end.

        May be called on any thread while names change. Names that do not change meanwhile are
        found; for the others the reader must follow `KvEventLog`.
        """
        return b"".join(filter(None, map(self._name_by_block.get, blocks)))

    @property
    def num_named(self) -> int:
        """Number of blocks that have a name."""
        return len(self._name_by_block)

    def named(self) -> list[int]:
        """The blocks that have a name at this moment. May be called on any thread."""
        return list(self._name_by_block)

    def is_named(self, block: int) -> bool:
        return block in self._name_by_block

    @property
    def idle_tenants(self) -> Iterable[str]:
        """Tenants that have evictable blocks. A live view."""
        return self._idle.tenants

    def num_evictable(self, tenant: str) -> int:
        return self._idle.num_evictable(tenant)

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def evictable_owners(self, blocks: Iterable[int]) -> Iterator[str]:
        """The tenant of each of `blocks` that is idle and not pinned."""
        return (self._idle.tenant_of(block) for block in blocks if self._idle.is_evictable(block))

    def match(self, names: Iterable[bytes]) -> Match:
        """The blocks of the longest known prefix of `names`, which may be a lazy iterator."""
        found = Match([], [], None)
        for name in names:
            block = self._block_by_name.get(name)
            if block is None:
                return found._replace(unknown=name)
            found.blocks.append(block)
            found.names.append(name)
        return found

    def add(self, block: int, name: bytes) -> None:
        """Name `block`, unless another block already has `name`.

        Raises ValueError if `block` has a different name, because contents of named blocks do not
        change.
        """
        known = self._name_by_block.get(block)
        if known is not None and known != name:
            raise ValueError(f"block {block} already has the name of other contents")
        if known == name or name in self._block_by_name:
            return
        self._block_by_name[name] = block
        self._name_by_block[block] = name
        if self.log is not None:
            self.log.stored(name)

    def retire(self, block: int, tenant: str) -> None:
        """Note that a named block has lost its last reference and is idle now, the most recently
        used."""
        is_pinned = self._pins.has(self._name_by_block[block])
        self._idle.add(block, tenant, is_pinned=is_pinned)

    def revive(self, block: int) -> None:
        """Note that an idle block is referenced again."""
        self._idle.remove(block)

    def evict(self, tenants: Iterable[str]) -> int:
        """Remove the name of the least recently used idle block of `tenants` that is not pinned,
        and return the block. Raises KeyError if there is none."""
        block = self._idle.pop_oldest(tenants)
        self.forget(block)
        return block

    def forget(self, block: int) -> None:
        """Remove the name of `block`, and all pins of it; does nothing if it has no name."""
        name = self._name_by_block.pop(block, None)
        if name is None:
            return
        del self._block_by_name[name]
        if self._pins.has(name):
            for pin in [pin for pin in self._pins if name in pin.names]:
                self.unpin(pin)
        if self.log is not None:
            self.log.evicted(name)

    def clear(self) -> list[int]:
        """Remove every name and pin; returns the blocks that were idle, which are free now."""
        idle = self._idle.clear()
        self._pins.clear()
        self._block_by_name.clear()
        self._name_by_block.clear()
        if self.log is not None:
            self.log.cleared()
        return idle

    @property
    def pins(self) -> CachePins:
        """The pins. Read-only: they must be changed by the methods here, which also update
        blocks."""
        return self._pins

    def pin(self, names: Sequence[bytes], tenant: str, ttl_s: float, now: float) -> None:
        """Pin the blocks of these names, all of which must be known, until `ttl_s` seconds after
        their last use."""
        for name in self._pins.add(tuple(names), tenant, ttl_s, now):
            self._idle.pin(self._block_by_name[name])

    def unpin(self, pin: Pin) -> None:
        """End a pin. Its last block becomes the first to be evicted."""
        for name in self._pins.drop(pin):
            block = self._block_by_name.get(name)
            if block is not None:
                self._idle.unpin(block)

    def use(self, names: Iterable[bytes], now: float) -> None:
        """Renew the pins of all prefixes that consist of the first of these names, with which a
        prompt begins."""
        if len(self._pins):
            for name in names:
                self._pins.use(name, now)

    def expire(self, now: float) -> int:
        """End the pins whose time is up; returns how many there were."""
        if not self._pins.is_due(now):
            return 0
        expired = self._pins.expired(now)
        for pin in expired:
            self.unpin(pin)
        return len(expired)

    def idle_pins(self, tenants: Iterable[str]) -> Iterator[Pin]:
        """Pins that keep idle blocks of `tenants` from eviction, least recently used first.

        A block counts for the tenant that took it, even if another tenant pinned it. So a pin of
        tenant B may have to be given up for A if an idle block in it counts for A.

        Finding a pin may look at every pinned block, at most `pinned_fraction` of the pool.
        """
        owners, idle = set(tenants), self._idle
        for pin in self._pins:
            blocks = (self._block_by_name[name] for name in reversed(pin.names))
            if any(block in idle and idle.tenant_of(block) in owners for block in blocks):
                yield pin
