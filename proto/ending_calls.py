"""Streamed calls that the far end is about to end, as it was told that all is here.

A cut that came before would look there like a crash. Nobody waits: what a call was for may be over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from baton.core.errors import BatonError

END_OF_CALL_S = 5.0
"""Seconds that the far end has; then the call is cut."""


class EndingCalls:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._ending: set[asyncio.Task[None]] = set()

    def let_end(self, events: AsyncGenerator[object, None]) -> None:
        """Close `events`, the iterator of a call, when the far end has ended it or had the time."""
        task = asyncio.create_task(_exhaust(events))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Return when no call is open any more."""
        while self._ending:
            await asyncio.wait(self._ending)


async def _exhaust(events: AsyncGenerator[object, None]) -> None:
    with suppress(BatonError, TimeoutError):
        async with asyncio.timeout(END_OF_CALL_S), aclosing(events):
            async for _ in events:
                pass
