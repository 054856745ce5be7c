"""Which block holds which contents, and which unreferenced block to give up first.

A named block is full, computed and never written again; its name (`baton.core.block_hash`) stands
for all tokens up to its end. While somebody references it, it is only listed here; once nobody
does it is *idle* and waits, least recently used first, to be matched again or evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from baton.engine.kv_event_log import KvEventLog


class PrefixCache:
    """Pure bookkeeping; the reference counts are the pool's."""

    def __init__(self) -> None:
        self.log: KvEventLog | None = None
        """Hears which names come and go, if anybody follows."""
        self._block_by_name: dict[bytes, int] = {}
        self._name_by_block: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def idle(self) -> frozenset[int]:
        """Unreferenced blocks that keep their contents."""
        return frozenset(self._idle)

    def names(self) -> Iterable[bytes]:
        return self._block_by_name.keys()

    def is_named(self, block: int) -> bool:
        return block in self._name_by_block

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def match(self, names: Iterable[bytes]) -> list[int]:
        """The blocks of the longest known prefix of `names`, which may be lazy."""
        blocks: list[int] = []
        for name in names:
            block = self._block_by_name.get(name)
            if block is None:
                break
            blocks.append(block)
        return blocks

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

    def retire(self, block: int) -> None:
        """The last reference to a named block is gone: it is the most recently used idle one."""
        self._idle[block] = None

    def revive(self, block: int) -> None:
        """An idle block is referenced again."""
        del self._idle[block]

    def evict(self) -> int:
        """Forget the least recently used idle block and return it. Raises KeyError if none is."""
        block, _ = self._idle.popitem(last=False)
        self.forget(block)
        return block

    def forget(self, block: int) -> None:
        """Nobody may find `block` any more. Nothing happens if it has no name."""
        name = self._name_by_block.pop(block, None)
        if name is None:
            return
        del self._block_by_name[name]
        if self.log is not None:
            self.log.evicted(name)

    def clear(self) -> list[int]:
        """Forget every name; return the blocks that were idle, which now hold nothing."""
        idle = list(self._idle)
        self._idle.clear()
        self._block_by_name.clear()
        self._name_by_block.clear()
        if self.log is not None:
            self.log.cleared()
        return idle
