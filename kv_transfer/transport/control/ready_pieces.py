"""The pieces of one stream that wait to be announced: bounded in number, and in bytes of memory.

A piece that is lent takes no memory of its own. One that carries its message is a copy, and P
copies faster than a network carries: unbounded, a slow D would hold half of its prompt twice.
"""

from __future__ import annotations

import asyncio
from collections import deque

from baton.kv_transfer.handoff.transport import LentPiece

MAX_READY = 32
"""Pieces waiting to be announced."""
MAX_READY_BYTES = 2 << 20
"""Bytes of their messages; one alone may be longer. One is sent while the next waits."""

Item = LentPiece | BaseException | None


class ReadyPieces:
    """Ends with None, or with what ended it. One task puts, one gets."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._num_bytes = 0
        self._changed = asyncio.Event()

    async def put(self, item: Item) -> None:
        """Add an item as soon as there is room; for an end there always is."""
        while isinstance(item, LentPiece) and self._is_full(item):
            self._changed.clear()
            await self._changed.wait()
        self._items.append(item)
        self._num_bytes += _num_bytes(item)
        self._changed.set()

    async def get(self) -> Item:
        while not self._items:
            self._changed.clear()
            await self._changed.wait()
        return self.get_nowait()

    def get_nowait(self) -> Item:
        """The first one, of which there is one."""
        item = self._items.popleft()
        self._num_bytes -= _num_bytes(item)
        self._changed.set()
        return item

    @property
    def is_empty(self) -> bool:
        return not self._items

    def _is_full(self, piece: LentPiece) -> bool:
        if not self._items:
            return False
        num_bytes = self._num_bytes + len(piece.message)
        return len(self._items) >= MAX_READY or (
            bool(piece.message) and num_bytes > MAX_READY_BYTES
        )


def _num_bytes(item: Item) -> int:
    return len(item.message) if isinstance(item, LentPiece) else 0
