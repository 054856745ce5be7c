"""Whose turn it is to connect, or to take a snapshot: of a thousand replicas only so many at once.

    wants a stream --> has a turn --> has what it opened it for, or has failed,
                                      or has had its turn for `turn_s`: the next one's

All at once they would not be through: each connection comes so late that it has timed out, on this
side or the other, and is tried again; and snapshots that have come take memory until they are
entered. A turn is short, so that replicas which answer nobody keep nobody from the others for long.
"""

from __future__ import annotations

import asyncio

MAX_OPENING = 64
TURN_S = 0.25
"""Seconds of a turn to connect, and be answered."""
SNAPSHOT_TURN_S = 1.0
"""Seconds of a turn for a snapshot, for as much as a million names."""


class OpeningSlots:
    """The turns in which one gateway opens streams, MAX_OPENING at once. Belongs to an event
    loop."""

    def __init__(self, turn_s: float = TURN_S) -> None:
        self._free = asyncio.Semaphore(MAX_OPENING)
        self._turn_s = turn_s
        self.num_waiting = 0
        """Streams that wait for their turn."""

    async def turn(self) -> OpeningSlot:
        self.num_waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.num_waiting -= 1
        return OpeningSlot(self._free, self._turn_s)


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
