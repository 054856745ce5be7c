"""A transfer's announcements, read ahead of the consumer of its pieces.

The bytes of each piece are on their way as soon as it is announced, and a slow reader holds up
nothing but P's window for this one transfer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from baton.kv_transfer.transport.control.client import AnnouncedPiece

T = TypeVar("T")


async def ahead(
    announcements: AsyncGenerator[AnnouncedPiece, None],
    start: Callable[[AnnouncedPiece], asyncio.Future[T]],
    drop: Callable[[asyncio.Future[T]], None],
) -> AsyncGenerator[tuple[AnnouncedPiece, asyncio.Future[T]], None]:
    """Yield each with what `start` made of it; `drop` that of those that are not wanted any more.

    Use it under `aclosing`.
    """
    arrivals: asyncio.Queue[tuple[AnnouncedPiece, asyncio.Future[T]] | None] = asyncio.Queue()

    async def listen() -> None:
        try:
            async with aclosing(announcements):
                async for announced in announcements:
                    arrivals.put_nowait((announced, start(announced)))
        finally:
            arrivals.put_nowait(None)

    listening = asyncio.create_task(listen())
    try:
        while (arrival := await arrivals.get()) is not None:
            yield arrival
        await listening
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        while not arrivals.empty():
            if (arrival := arrivals.get_nowait()) is not None:
                drop(arrival[1])
