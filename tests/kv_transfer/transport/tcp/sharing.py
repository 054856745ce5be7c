"""Both halves of raw TCP, with a side that has pieces to send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from tests.kv_transfer.transport.control_ends import (
    ControlEnds,
    PreparedSide,
    control_ends,
)

from baton.kv_transfer.transport.tcp.tcp import TcpSending, TcpTransport


@asynccontextmanager
async def sharing(
    side: PreparedSide | None = None,
) -> AsyncIterator[tuple[ControlEnds, TcpSending, TcpTransport]]:
    half = TcpSending()
    async with control_ends(side or PreparedSide(40), tcp=half) as it:
        transport = TcpTransport(it.client)
        try:
            yield it, half, transport
        finally:
            await transport.close()
            await half.close()


async def bytes_of(it: ControlEnds, transport: TcpTransport) -> list[bytes]:
    found: list[bytes] = []
    async with aclosing(transport.open(it.address, it.request)) as pieces:
        async for piece in pieces:
            [data] = await asyncio.to_thread(list, piece.views)
            found.append(bytes(data))
            piece.release()
    return found


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.001)
