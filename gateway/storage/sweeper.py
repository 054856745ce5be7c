"""The folder, looked through now and then, and when somebody lacks room; by one call at a time.

A look at millions of files takes longer than a call to the disk may: whoever lacks room waits here
for a moment, and is refused if that is too short, while the look goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from baton.core.errors import StorageUnavailable

SWEEP_S = 600.0
ROOM_S = 5.0
"""Who lacks room waits for so long; less than for a disk that hangs."""


class Sweeper:
    def __init__(self, look: Callable[[int], Awaitable[None]]) -> None:
        """`look` sweeps the folder, and makes room for as many bytes."""
        self._look = look
        self._wanted = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._is_asked = asyncio.Event()
        self._sweeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._sweeping = asyncio.create_task(self._sweep_on(), name="sweeps the storage")

    async def stop(self) -> None:
        """Safe to repeat."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)

    def ask(self) -> None:
        """For a look, which nobody waits for."""
        self._is_asked.set()

    async def make_room(self, num_bytes: int) -> None:
        """Return after the next look, or sooner if that takes long."""
        looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wanted += num_bytes
        self._waiting.append(looked)
        self.ask()
        with suppress(TimeoutError):
            async with asyncio.timeout(ROOM_S):
                await looked

    async def _sweep_on(self) -> None:
        """For ever."""
        while True:
            self._is_asked.clear()
            wanted, self._wanted = self._wanted, 0
            waiting, self._waiting = self._waiting, []
            with suppress(StorageUnavailable):
                await self._look(wanted)
            for looked in waiting:
                if not looked.done():
                    looked.set_result(None)
            with suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_S):
                    await self._is_asked.wait()
