"""A TCP proxy whose connections can be cut, as networks do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class CutProxy:
    def __init__(self, port: int) -> None:
        self.port = port
        """Where connections go that are made from now on."""
        self._writers: list[asyncio.StreamWriter] = []
        self.num_connections = 0
        self.target = ""

    def cut(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers += [writer, up_writer]
        await asyncio.gather(_pump(reader, up_writer), _pump(up_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def cut_proxy(port: int) -> AsyncIterator[CutProxy]:
    proxy = CutProxy(port)
    server = await asyncio.start_server(proxy.connect, "127.0.0.1", 0)
    proxy.target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
