"""Control streams over a socket of this machine, for two processes that share its memory anyway.

    D: SocketCall                                P: serve_line
      | --- MESSAGE: OpenMessage ------------> |   what is said, and in which order, is as on a
      | <-- MESSAGE: KvPieces ---------------- |   gRPC stream (proto/kv.proto): this is one
      | <-- STATUS: a code, why, which error - |   as gRPC ends a stream: OK, or an error
      | --- hangs up ------------------------> |   what P does for it is cancelled

A message over gRPC wakes one or two more threads at either end, which takes longer than to write a
small prompt. A frame is its kind, its length and its bytes, little-endian.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import NoReturn, Protocol, Self, TypeAlias, cast, runtime_checkable

import grpc
import msgspec
from google.protobuf.message import DecodeError

from baton.kv_transfer.transport.control.wire import ServicerContext
from baton.proto import kv_pb2 as pb

log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 16 << 20
"""Longer than any message without the bytes of blocks: tickets and checksums of a window."""

_FRAME = struct.Struct("<BI")
_MESSAGE, _STATUS = 1, 2

OpenStream: TypeAlias = Callable[
    [AsyncIterator[pb.OpenMessage], ServicerContext], AsyncGenerator[bytes, None]
]
"""What serves a stream: `KvTransferServicer.Open`."""


@runtime_checkable
class OpensLines(Protocol):
    """A sending half that is reached by sockets of its own."""

    open_stream: OpenStream | None
    """What serves the half's lines. Set by the server of the half."""


class _Status(msgspec.Struct, frozen=True):
    """How a stream ended."""

    code: str = grpc.StatusCode.OK.name
    details: str = ""
    metadata: list[tuple[str, str]] = []

    def as_error(self) -> grpc.aio.AioRpcError:
        code = grpc.StatusCode.__members__.get(self.code, grpc.StatusCode.UNKNOWN)
        return _error(code, self.details, grpc.aio.Metadata(*self.metadata))


class _Refused(Exception):
    """What the servicer ends a stream with."""

    def __init__(self, status: _Status) -> None:
        super().__init__(status.details)
        self.status = status


class _Context:
    """What a servicer uses of gRPC's context."""

    async def abort(
        self, code: grpc.StatusCode, details: str = "", metadata: tuple[tuple[str, str], ...] = ()
    ) -> NoReturn:
        raise _Refused(_Status(code.name, details, list(metadata)))


class SocketCall:
    """D's end, as a `grpc.aio.StreamStreamCall` behaves. Belongs to one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._has_ended = self._is_whole = False
        """Whole: P has said that it ends."""

    @classmethod
    async def over(cls, connection: socket.socket) -> Self:
        """`connection` is P's line; it is this call's now. Raises OSError."""
        return cls(*await asyncio.open_unix_connection(sock=connection))

    def done(self) -> bool:
        return self._has_ended or self._reader.at_eof()

    def cancel(self) -> None:
        """Hang up. Safe to repeat."""
        self._has_ended = True
        self._writer.transport.abort()

    async def write(self, message: pb.OpenMessage) -> None:
        """Raises InvalidStateError where the stream has ended."""
        if self.done() or self._writer.is_closing():
            raise asyncio.InvalidStateError("the line has ended")
        self._writer.write(_frame(_MESSAGE, message.SerializeToString()))
        try:
            await self._writer.drain()
        except OSError as error:
            raise asyncio.InvalidStateError(f"the line has ended: {error}") from error

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Raises AioRpcError."""
        if self._is_whole:
            raise StopAsyncIteration
        try:
            kind, payload = await _next_frame(self._reader)
            if kind == _MESSAGE:
                return payload
            status = msgspec.msgpack.decode(payload, type=_Status)
        except BaseException as error:
            self.cancel()
            if not isinstance(error, OSError | EOFError | ValueError):
                raise
            unavailable, why = grpc.StatusCode.UNAVAILABLE, f"the line broke: {error}"
            raise _error(unavailable, why, grpc.aio.Metadata()) from error
        self.cancel()
        self._is_whole = status.code == grpc.StatusCode.OK.name
        if self._is_whole:
            raise StopAsyncIteration
        raise status.as_error()


async def serve_line(connection: socket.socket, open_stream: OpenStream) -> None:
    """P's end, which `connection` belongs to. Return when either is over; cancelled, it is cut."""
    try:
        reader, writer = await asyncio.open_unix_connection(sock=connection)
    except BaseException:
        connection.close()
        raise
    serving = asyncio.current_task()
    assert serving is not None
    messages = _Messages(reader, serving.cancel)
    context = cast(ServicerContext, _Context())
    status = _Status(grpc.StatusCode.UNAVAILABLE.name, "the sender has closed the line")
    try:
        async with aclosing(open_stream(messages, context)) as answers:
            async for answer in answers:
                writer.write(_frame(_MESSAGE, answer))
                await writer.drain()
        status = _Status()
    except _Refused as refused:
        status = refused.status
    except OSError:
        pass  # D has hung up
    except Exception as error:
        log.exception("a transfer's stream failed")
        status = _Status(grpc.StatusCode.UNKNOWN.name, repr(error))
    finally:
        if not writer.is_closing():
            writer.write(_frame(_STATUS, msgspec.msgpack.encode(status)))
            writer.close()  # once that is written


class _Messages:
    """What D says, until it hangs up: then nobody is to be served any more."""

    def __init__(self, reader: asyncio.StreamReader, hung_up: Callable[[], object]) -> None:
        self._reader = reader
        self._hung_up = hung_up

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pb.OpenMessage:
        try:
            kind, payload = await _next_frame(self._reader)
            if kind != _MESSAGE:
                raise ValueError(f"a frame of kind {kind}")
            return pb.OpenMessage.FromString(payload)
        except (OSError, EOFError, ValueError, DecodeError):
            self._hung_up()
            raise StopAsyncIteration from None


def _frame(kind: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, len(payload)) + payload


async def _next_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Raises EOFError at the end, OSError, or ValueError for what is no frame."""
    kind, num_bytes = _FRAME.unpack(await reader.readexactly(_FRAME.size))
    if kind not in (_MESSAGE, _STATUS) or num_bytes > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of kind {kind} and {num_bytes} bytes")
    return kind, await reader.readexactly(num_bytes)


def _error(
    code: grpc.StatusCode, details: str, trailing: grpc.aio.Metadata
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details=details)
