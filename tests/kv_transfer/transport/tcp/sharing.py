"""Both ends of raw TCP, with a side that has pieces to send."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from tests.kv_transfer.transport.control_ends import (
    ControlEnds,
    PreparedSide,
    control_ends,
)

from baton.kv_transfer.transport.lent import SECRET_BYTES
from baton.kv_transfer.transport.tcp.tcp import TcpSending, TcpTransport

NO_SECRET = bytes(SECRET_BYTES)


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


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection, which takes little before it is read."""
    with socket.create_server(("127.0.0.1", 0)) as door, socket.socket() as ours:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        ours.connect(door.getsockname())
        return ours.dup(), door.accept()[0]
