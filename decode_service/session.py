"""One gateway's stream, seen from the decode replica: what is waiting to be sent to it.

Updates pile up while the stream is busy and leave together in one frame: back-pressure makes frames
larger, nothing ever waits for a timer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from baton.core.ids import Epoch
from baton.core.messages import Capacity, TokenUpdate


@dataclass(frozen=True, slots=True)
class Frame:
    updates: tuple[TokenUpdate, ...]
    capacity: Capacity


class GatewaySession:
    def __init__(self, gateway_epoch: Epoch) -> None:
        self.gateway_epoch = gateway_epoch
        self.is_closed = False
        self._updates: list[TokenUpdate] = []
        self._capacity = Capacity()
        self._pending = asyncio.Event()
        self._is_ending = False

    def put(self, update: TokenUpdate) -> None:
        if not self.is_closed:
            self._updates.append(update)
            self._pending.set()

    def put_capacity(self, capacity: Capacity) -> None:
        if capacity != self._capacity:
            self._capacity = capacity
            self._pending.set()

    def end(self) -> None:
        """Send what is pending, then nothing more. Safe to repeat."""
        self._is_ending = True
        self._pending.set()

    async def next_frame(self) -> Frame | None:
        """None when the session has ended."""
        await self._pending.wait()
        if self._is_ending and not self._updates:
            return None
        if not self._is_ending:
            self._pending.clear()
        updates, self._updates = self._updates, []
        return Frame(tuple(updates), self._capacity)
