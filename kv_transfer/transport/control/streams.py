"""D's control streams to its senders: each carries one transfer at a time, and is kept for the
next.

    begin --> in use --> the end, and P was told what was taken --keep--> idle --> begin
                 `- anything else: closed                                  `- IDLE_S: closed

Opening a stream costs several times what a message on it does. A stream that broke while idle is
replaced; one that breaks in use cuts its transfer, which its receiver opens again. A stream is a
gRPC call, or goes through the sender's own socket where it has one (`socket_lines.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Protocol

import grpc

from baton.core.errors import TransferCut
from baton.kv_transfer.transport.control.wire import error_from_status
from baton.proto import kv_pb2 as pb
from baton.proto.channels import Channels

IDLE_S = 10.0
"""A stream on which nothing was opened for so long is closed."""
MAX_IDLE_EACH = 4
"""Streams to one sender that are kept while nothing is open on them."""
MAX_IDLE = 64
"""Idle lines to all addresses together."""

SERVICE = pb.DESCRIPTOR.services_by_name["KvTransfer"].full_name


class Door(Protocol):
    """Another way to an incarnation of a sender than gRPC."""

    @property
    def name(self) -> str:
        """No other door's, and no address."""

    async def call(self) -> Any | None:
        """A stream through it, which behaves as gRPC's; None where it is shut."""


class ControlStream:
    """One stream. Belongs to one event loop."""

    def __init__(self, call: Any, way: str) -> None:
        """`way`: the address, or the door's name."""
        self.way = way
        self._call = call
        # Not `call.read`: behind a write that failed it no longer tells why the stream ended.
        self._messages: AsyncIterator[bytes] = aiter(call)
        self._reading: asyncio.Task[bytes | None] | None = None

    @property
    def is_quiet(self) -> bool:
        """Whether the line is open, and everything that came was read."""
        return not self._call.done() and (self._reading is None or not self._reading.done())

    async def write(self, message: pb.OpenMessage) -> None:
        """Raises AioRpcError, or InvalidStateError where the stream has just ended."""
        await self._call.write(message)

    async def read(self) -> bytes | None:
        """The next message; None at the end. Cancelled, it ends the stream. Raises AioRpcError."""
        if self._reading is None:
            return await anext(self._messages, None)
        message = await self._reading
        self._reading = None
        return message

    def reading(self) -> asyncio.Task[bytes | None]:
        """Is done when something has come, or the stream has ended. Not to be cancelled."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(_mark_seen)
        return self._reading

    def close(self) -> None:
        self._call.cancel()

    async def _read(self) -> bytes | None:
        return await anext(self._messages, None)


class ControlStreams:
    """Belongs to one event loop."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._idle: dict[str, deque[tuple[ControlStream, asyncio.TimerHandle]]] = {}
        """Idle lines by their way; the one used last is last."""

    @property
    def num_idle(self) -> int:
        return sum(map(len, self._idle.values()))

    async def begin(
        self, address: str, opening: pb.OpenMessage, door: Door | None = None
    ) -> tuple[ControlStream, bytes | None]:
        """A stream on which a transfer is open now, and P's first message.

        Raises AioRpcError.
        """
        while (line := self._take(address if door is None else door.name)) is not None:
            try:
                if (message := await _opened(line, opening)) is not None:
                    return line, message
            except asyncio.InvalidStateError:
                pass
            except grpc.aio.AioRpcError as error:
                if type(error_from_status(error, address, self._channels)) is not TransferCut:
                    raise
            line.close()  # it ended while nothing was open on it
        line = await self._new(address, door)
        return line, await _opened(line, opening)

    async def _new(self, address: str, door: Door | None) -> ControlStream:
        call = None if door is None else await door.call()
        if door is not None and call is not None:
            return ControlStream(call, door.name)
        streaming: Any = self._channels.to(address).stream_stream(
            f"/{SERVICE}/Open", request_serializer=pb.OpenMessage.SerializeToString
        )
        return ControlStream(streaming(), address)

    def keep(self, line: ControlStream) -> None:
        """Keep a line for the next transfer, unless it has ended, or there are too many."""
        if not line.is_quiet:
            line.close()
            return
        closing = asyncio.get_running_loop().call_later(IDLE_S, self._close_oldest, line.way)
        idle = self._idle.setdefault(line.way, deque())
        idle.append((line, closing))
        if len(idle) > MAX_IDLE_EACH:
            self._close_oldest(line.way)
        elif self.num_idle > MAX_IDLE:
            self._close_oldest(next(iter(self._idle)))

    def _take(self, way: str) -> ControlStream | None:
        idle = self._idle.get(way, deque())
        while idle:
            line, closing = idle.pop()
            closing.cancel()
            if not idle:
                del self._idle[way]
            if line.is_quiet:
                return line
            line.close()
        return None

    def _close_oldest(self, way: str) -> None:
        idle = self._idle[way]
        line, closing = idle.popleft()
        closing.cancel()
        if not idle:
            del self._idle[way]
        line.close()


async def _opened(line: ControlStream, opening: pb.OpenMessage) -> bytes | None:
    """P's first message. What is raised closes the stream."""
    try:
        await line.write(opening)
        return await line.read()
    except BaseException:
        line.close()
        raise


def _mark_seen(reading: asyncio.Task[bytes | None]) -> None:
    """There may be no reader left; a failure is told to those that are."""
    if not reading.cancelled():
        reading.exception()
