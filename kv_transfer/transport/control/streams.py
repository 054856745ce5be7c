"""D's control streams to its senders: each carries one transfer at a time, and is kept for the
next.

    begin --> in use --> the end, and P was told what was taken --keep--> idle --> begin
                 `- anything else: closed                                  `- IDLE_S: closed

Opening a stream costs several times what a message on it does. A stream that broke while idle is
replaced; one that breaks in use cuts its transfer, which its receiver opens again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

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


class ControlStream:
    """One stream. Belongs to one event loop."""

    def __init__(self, call: Any) -> None:
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
        """Idle lines by address; the one used last is last."""

    @property
    def num_idle(self) -> int:
        return sum(map(len, self._idle.values()))

    async def begin(
        self, address: str, opening: pb.OpenMessage
    ) -> tuple[ControlStream, bytes | None]:
        """A stream on which a transfer is open now, and P's first message.

        Raises AioRpcError.
        """
        while (line := self._take(address)) is not None:
            try:
                if (message := await _opened(line, opening)) is not None:
                    return line, message
            except asyncio.InvalidStateError:
                pass
            except grpc.aio.AioRpcError as error:
                if type(error_from_status(error, address, self._channels)) is not TransferCut:
                    raise
            line.close()  # it ended while nothing was open on it
        call: Any = self._channels.to(address).stream_stream(
            f"/{SERVICE}/Open", request_serializer=pb.OpenMessage.SerializeToString
        )()
        line = ControlStream(call)
        return line, await _opened(line, opening)

    def keep(self, address: str, line: ControlStream) -> None:
        """Keep a line for the next transfer, unless it has ended, or there are too many."""
        if not line.is_quiet:
            line.close()
            return
        closing = asyncio.get_running_loop().call_later(IDLE_S, self._close_oldest, address)
        idle = self._idle.setdefault(address, deque())
        idle.append((line, closing))
        if len(idle) > MAX_IDLE_EACH:
            self._close_oldest(address)
        elif self.num_idle > MAX_IDLE:
            self._close_oldest(next(iter(self._idle)))

    def _take(self, address: str) -> ControlStream | None:
        idle = self._idle.get(address, deque())
        while idle:
            line, closing = idle.pop()
            closing.cancel()
            if not idle:
                del self._idle[address]
            if line.is_quiet:
                return line
            line.close()
        return None

    def _close_oldest(self, address: str) -> None:
        idle = self._idle[address]
        line, closing = idle.popleft()
        closing.cancel()
        if not idle:
            del self._idle[address]
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
