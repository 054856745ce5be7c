"""uvicorn within an event loop and a process that it does not own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn

TICK_S = 1.0
"""Seconds between updates of the `Date` header."""


class GuestServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._is_ending = asyncio.Event()

    def end(self) -> None:
        """Accept nothing more; `serve` returns when all requests have ended."""
        self.should_exit = True
        self._is_ending.set()

    async def main_loop(self) -> None:
        """Wait for the end; uvicorn itself would poll for it ten times a second."""
        while not await self.on_tick(0):  # the count at which it sets the date
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._is_ending.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signal handlers to the process's owner."""
        yield
