"""A streaming HTTP client with little CPU time, since it shares the cores with the server.

One connection, one request at a time; notes when each write of the server arrives.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Self

import msgspec

SEPARATOR = b"\n\n"
PREFIX = b"data: "
DONE = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class Streamed:
    """One answer. Times are seconds since the request was sent."""

    times: tuple[float, ...]
    """Arrival of each write except [DONE]; the server writes once for each update with text."""
    events: tuple[dict[str, Any], ...]
    """The events of the first and the last write."""

    @property
    def last(self) -> dict[str, Any]:
        """The last event, which has usage and receipt if wanted."""
        return self.events[-1]

    @property
    def gaps(self) -> tuple[float, ...]:
        """Seconds between one write and the next."""
        return tuple(
            later - sooner for sooner, later in zip(self.times, self.times[1:], strict=False)
        )


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, host: str = "127.0.0.1") -> Self:
        return cls(*await asyncio.open_connection(host, port))

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def complete(self, body: dict[str, Any]) -> Streamed:
        """POST it to /v1/completions as a stream. Raises RuntimeError on any status but 200."""
        data = msgspec.json.encode({**body, "stream": True})
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"content-length: {len(data)}\r\n\r\n"
        )
        sent_at = time.perf_counter()
        self._writer.write(head.encode() + data)
        header = await self._reader.readuntil(b"\r\n\r\n")
        status = header.split(b"\r\n", 1)[0]
        if b" 200 " not in status:
            raise RuntimeError(f"{status.decode()}: {(await self._reader.read(2000)).decode()}")
        times: list[float] = []
        first = last = b""
        while chunk := await self._chunk():
            if chunk.strip() != DONE:
                times.append(time.perf_counter() - sent_at)
                first, last = first or chunk, chunk
        return Streamed(tuple(times), (*_events(first), *_events(last)))

    async def _chunk(self) -> bytes:
        """The next piece of a chunked body; empty at its end."""
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        return (await self._reader.readexactly(size + 2))[:-2]


def _events(chunk: bytes) -> list[dict[str, Any]]:
    found = [event for event in chunk.split(SEPARATOR) if event and event != DONE]
    return [msgspec.json.decode(event.removeprefix(PREFIX)) for event in found]
