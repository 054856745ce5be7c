"""The prefix cache of a simulated replica: the least recently used blocks go first.

It reports its changes as a live replica does, so that the router's own index follows it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from baton.core.kv_events import KvChange, KvEvent


class BlockCache:
    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._names: OrderedDict[bytes, None] = OrderedDict()
        """The least recently used first; a block after those that continue it."""

    def num_held(self, names: Sequence[bytes]) -> int:
        """How many leading blocks are there."""
        for depth, name in enumerate(names):
            if name not in self._names:
                return depth
        return len(names)

    def store(self, names: Sequence[bytes]) -> list[KvEvent]:
        """Have all of a prompt's blocks, of which those there are used again."""
        cache = self._names
        stored: list[bytes] = []
        for name in reversed(names):
            if name in cache:
                cache.move_to_end(name)
            else:
                cache[name] = None
                stored.append(name)
        evicted = [cache.popitem(last=False)[0] for _ in range(len(cache) - self._num_blocks)]
        events: list[KvEvent] = []
        if stored:
            events.append(KvEvent(KvChange.STORED, b"".join(stored)))
        if evicted:
            events.append(KvEvent(KvChange.EVICTED, b"".join(evicted)))
        return events
