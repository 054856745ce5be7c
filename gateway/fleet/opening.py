"""Whose turn it is to connect: of a thousand replicas only so many at once.

    wants to connect --> has a turn --> has heard of its replica, or of its failure,
                                        or has had its turn for `TURN_S`: the next one's

All at once they would not be through: each connection comes so late that it has timed out, on this
side or the other, and is tried again. A turn is short, so that replicas which answer nobody keep
nobody from the others for long.
"""

from __future__ import annotations

import asyncio

MAX_OPENING = 64
TURN_S = 0.25


class Opening:
    """Of one gateway. Belongs to an event loop."""

    def __init__(self, max_opening: int = MAX_OPENING, turn_s: float = TURN_S) -> None:
        self._free = asyncio.Semaphore(max_opening)
        self._turn_s = turn_s

    async def turn(self) -> Turn:
        await self._free.acquire()
        return Turn(self._free, self._turn_s)


class Turn:
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
