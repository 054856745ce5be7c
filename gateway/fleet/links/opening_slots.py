"""Limits how many replicas a gateway connects to, or takes a snapshot from, at the same time.

    wants a stream --> has a turn --> done, failed, or `turn_s` over: next

A thousand at once would fail: each connection would be so slow that it times out and is retried,
and snapshots take memory until they are entered. A turn is short, so that unresponsive replicas do
not delay others for long. A starting gateway places nothing before it knows half of the caches.
Until then it only connects to as many replicas as it can take snapshots from; otherwise all would
be connected before half have answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

MAX_OPENING = 64
TURN_S = 0.25
"""Seconds of a turn to connect and receive an answer."""
SNAPSHOT_TURN_S = 1.0
"""Seconds of a turn for a snapshot of up to a million block hashes."""


class OpeningSlots:
    """Limits one gateway to opening MAX_OPENING streams at once. Belongs to an event loop."""

    def __init__(
        self,
        turn_s: float = TURN_S,
        behind: OpeningSlots | None = None,
        is_held_back: Callable[[], bool] = lambda: False,
    ) -> None:
        """`behind`: the slots that streams wait for after these. While MAX_OPENING wait there and
        `is_held_back()`, no turn begins here."""
        self._free = asyncio.Semaphore(MAX_OPENING)
        self._turn_s = turn_s
        self._behind = behind
        self._is_held_back = is_held_back
        self._first = asyncio.Lock()
        """Held by the waiter whose turn is next."""
        self._has_moved = asyncio.Event()
        self.num_waiting = 0
        """Streams that wait for their turn."""

    async def turn(self) -> OpeningSlot:
        self.num_waiting += 1
        try:
            async with self._first:
                await self._until_it_goes_on()
                await self._free.acquire()
        finally:
            self.num_waiting -= 1
            self._has_moved.set()
            self._has_moved = asyncio.Event()
        return OpeningSlot(self._free, self._turn_s)

    async def _until_it_goes_on(self) -> None:
        behind = self._behind
        if behind is not None:
            while behind.num_waiting >= MAX_OPENING and self._is_held_back():
                await behind._has_moved.wait()


class OpeningSlot:
    def __init__(self, free: asyncio.Semaphore, turn_s: float) -> None:
        self._free = free
        self._timer = asyncio.get_running_loop().call_later(turn_s, self.end)
        self._is_over = False

    def end(self) -> None:
        """Safe to repeat."""
        if not self._is_over:
            self._is_over = True
            self._timer.cancel()
            self._free.release()
