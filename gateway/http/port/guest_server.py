"""uvicorn as a guest in somebody else's event loop and process, which it leaves at rest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn

TICK_S = 1.0
"""How often the `Date` of its answers is set."""


class GuestServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._is_ending = asyncio.Event()

    def end(self) -> None:
        """Accept nothing more; `serve` returns when what runs has ended."""
        self.should_exit = True
        self._is_ending.set()

    async def main_loop(self) -> None:
        """uvicorn itself would look ten times a second whether it is to end."""
        while not await self.on_tick(0):  # the count at which it sets the date
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._is_ending.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever owns the process."""
        yield
