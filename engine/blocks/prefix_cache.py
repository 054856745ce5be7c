"""Which block holds which contents, and which unreferenced block to evict first.

A named block is full, computed and never written again; its name (`baton.core.block_hash`) stands
for all tokens up to its end. While it is referenced it is only listed here. Without references it
is *idle* and waits, least recently used first, to be matched again or evicted. A pinned name's
block is not evicted while its pin lasts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from baton.engine.blocks.cache_pins import CachePins, Pin
from baton.engine.blocks.idle_blocks import IdleBlocks
from baton.engine.blocks.kv_event_log import KvEventLog


class Match(NamedTuple):
    blocks: list[int]
    names: list[bytes]
    """The names of these blocks."""
    unknown: bytes | None
    """The name behind them, if there is one: no block has it."""


class PrefixCache:
    """Pure bookkeeping; the reference counts are the pool's."""

    def __init__(self) -> None:
        self.log: KvEventLog | None = None
        """Hears which names come and go, if anybody follows."""
        self._block_by_name: dict[bytes, int] = {}
        self._name_by_block: dict[int, bytes] = {}
        self._idle = IdleBlocks()
        self._pins = CachePins()

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def idle(self) -> array[int]:
        """Unreferenced blocks that keep their contents."""
        return array("i", self._idle)

    def names(self) -> Iterable[bytes]:
        """Live: read it before the next change."""
        return self._block_by_name.keys()

    def names_of(self, blocks: Iterable[int]) -> bytes:
        """The names that these blocks have at this moment, end to end.

        On any thread, while they change: a block keeps its number for as long as it has its name,
        so what lasts is found, and whether the rest is found is for `KvEventLog` to tell.
        """
        return b"".join(filter(None, map(self._name_by_block.get, blocks)))

    @property
    def num_named(self) -> int:
        """Blocks that have a name."""
        return len(self._name_by_block)

    def named(self) -> list[int]:
        """The blocks that have a name at this moment. On any thread."""
        return list(self._name_by_block)

    def is_named(self, block: int) -> bool:
        return block in self._name_by_block

    @property
    def idle_tenants(self) -> Iterable[str]:
        """Tenants that have idle blocks that may be evicted. Live."""
        return self._idle.tenants

    def num_evictable(self, tenant: str) -> int:
        return self._idle.num_evictable(tenant)

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def evictable_owners(self, blocks: Iterable[int]) -> Iterator[str]:
        """The tenant of each of the blocks that is idle and not pinned."""
        return (self._idle.tenant_of(block) for block in blocks if self._idle.is_evictable(block))

    def match(self, names: Iterable[bytes]) -> Match:
        """The longest known prefix of `names`, which may be lazy."""
        found = Match([], [], None)
        for name in names:
            block = self._block_by_name.get(name)
            if block is None:
                return found._replace(unknown=name)
            found.blocks.append(block)
            found.names.append(name)
        return found

    def add(self, block: int, name: bytes) -> None:
        """Let `block` be found as `name`, unless another block already is.

        Raises ValueError if `block` has a different name: contents do not change.
        """
        known = self._name_by_block.get(block)
        if known is not None and known != name:
            raise ValueError(f"block {block} is named already, by other contents")
        if known == name or name in self._block_by_name:
            return
        self._block_by_name[name] = block
        self._name_by_block[block] = name
        if self.log is not None:
            self.log.stored(name)

    def retire(self, block: int, tenant: str) -> None:
        """The last reference to a named block is gone: it is the most recently used idle one."""
        is_pinned = self._pins.has(self._name_by_block[block])
        self._idle.add(block, tenant, is_pinned=is_pinned)

    def revive(self, block: int) -> None:
        """An idle block is referenced again."""
        self._idle.remove(block)

    def evict(self, tenants: Iterable[str]) -> int:
        """Forget the least recently used idle block of `tenants`, pinned ones aside; return it.

        Raises KeyError if there is none.
        """
        block = self._idle.pop_oldest(tenants)
        self.forget(block)
        return block

    def forget(self, block: int) -> None:
        """Nobody may find `block` any more. Nothing happens if it has no name."""
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
        """Forget every name; return the blocks that were idle, which now hold nothing."""
        idle = self._idle.clear()
        self._pins.clear()
        self._block_by_name.clear()
        self._name_by_block.clear()
        if self.log is not None:
            self.log.cleared()
        return idle

    @property
    def pins(self) -> CachePins:
        """The pins. Read-only: blocks follow only what is done here."""
        return self._pins

    def pin(self, names: Sequence[bytes], tenant: str, ttl_s: float, now: float) -> None:
        """Keep the blocks of these names, which are all known, for a time."""
        for name in self._pins.add(tuple(names), tenant, ttl_s, now):
            self._idle.pin(self._block_by_name[name])

    def unpin(self, pin: Pin) -> None:
        """Its deepest block is the first to be evicted."""
        for name in self._pins.drop(pin):
            block = self._block_by_name.get(name)
            if block is not None:
                self._idle.unpin(block)

    def use(self, names: Iterable[bytes], now: float) -> None:
        """A prompt begins with these names: pins that it came to the end of last all anew."""
        if len(self._pins):
            for name in names:
                self._pins.use(name, now)

    def expire(self, now: float) -> int:
        """Unpin what has not been used for its time; how many pins that were."""
        if not self._pins.is_due(now):
            return 0
        expired = self._pins.expired(now)
        for pin in expired:
            self.unpin(pin)
        return len(expired)

    def idle_pins(self, tenants: Iterable[str]) -> Iterator[Pin]:
        """Pins that keep idle blocks of `tenants` from eviction, least recently used first.

        A block stays on the account of whoever took it, whose pin it is or not: a pin of tenant B
        goes for A's sake where its block lies idle on A's account.

        To find one may take a look at every pinned block: `pinned_fraction` of the pool at most.
        """
        owners, idle = set(tenants), self._idle
        for pin in self._pins:
            blocks = (self._block_by_name[name] for name in reversed(pin.names))
            if any(block in idle and idle.tenant_of(block) in owners for block in blocks):
                yield pin
