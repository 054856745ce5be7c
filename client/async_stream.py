"""A streamed generation, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

import grpc
import grpc.aio

from baton.client.calls import END_TIMEOUT_S, StreamCall
from baton.client.connection import Connection
from baton.client.errors import RequestCancelled, client_closed, from_rpc_error
from baton.client.retry import Attempts
from baton.client.stream_progress import StreamProgress
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

D = TypeVar("D")
T = TypeVar("T")


class _Responses(Protocol):
    """gRPC's call."""

    async def read(self) -> Any: ...

    def cancel(self) -> bool: ...


class AsyncStream(Generic[D, T]):
    """`Stream`, with `async with` and `async for`. Made where an event loop runs."""

    def __init__(self, stub: InferenceStub, call: StreamCall[D, T], connection: Connection) -> None:
        self._stub = stub
        self._call = call
        self._metadata = connection.metadata
        self._progress = StreamProgress(Attempts(connection.retry, call.timeout_s))
        self._deltas: list[D] = []
        self._is_closed = False
        self._is_read = False
        """Whether a task waits for the next delta."""
        self._responses = self._open()

    async def __aenter__(self) -> AsyncStream[D, T]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[D]:
        return self

    async def __anext__(self) -> D:
        if self._is_read:  # gRPC would leave one of them waiting for ever
            raise RuntimeError(
                "another task is reading this stream; read it from one task at a time"
            )
        self._is_read = True
        try:
            return await self._next()
        finally:
            self._is_read = False

    async def _next(self) -> D:
        while not self._is_closed:
            try:
                with noting_closed():
                    response = await self._responses.read()
            except RequestCancelled:
                if not self._is_closed:  # the client has been closed, not the stream
                    self._is_closed = True
                    raise
            except grpc.RpcError as error:
                await self._go_on_after(error)
            else:
                if response is grpc.aio.EOF:
                    self._is_closed = True
                    break
                self._progress.received(response)
                self._deltas.append(self._call.read(response))
                return self._deltas[-1]
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop the generation if it still runs. Safe to repeat."""
        if self._is_closed:
            return
        self._is_closed = True
        self._responses.cancel()
        if self._progress.stream_id:
            await self._end_on_server()

    async def result(self) -> T:
        """Everything in one piece; waits for what has not arrived yet.

        Raises ServerFailed if the stream ended, or was closed, before its last delta.
        """
        async for _ in self:
            pass
        return self._call.join(self._deltas)

    async def _go_on_after(self, error: grpc.RpcError) -> None:
        """Call again after a wait, or raise `error` if that is not worth it, or not safe."""
        if self._is_closed:  # by another task, which is why the call has failed
            return
        try:
            delay_s = self._progress.delay_s_after(from_rpc_error(error))
        except BaseException:
            self._is_closed = True
            raise
        await asyncio.sleep(delay_s)
        if not self._is_closed:  # by another task
            self._responses = self._open()

    def _open(self) -> _Responses:
        resumption = self._progress.resumption()
        method = self._call.method if resumption is None else self._call.resume_method
        with noting_closed():
            responses: _Responses = getattr(self._stub, method)(
                self._call.request if resumption is None else resumption,
                timeout=self._progress.attempts.time_left_s,
                metadata=self._metadata,
            )
        return responses

    async def _end_on_server(self) -> None:
        """Notify the server that the stream will not be resumed: a closed connection looks like
        a broken one."""
        with suppress(grpc.aio.UsageError):  # the client has been closed
            end: Any = self._stub.EndStream(
                pb.EndStreamRequest(stream_id=self._progress.stream_id),
                timeout=END_TIMEOUT_S,
                metadata=self._metadata,
            )
            await end.code()  # awaiting `end` itself raises, CancelledError too


@contextmanager
def noting_closed() -> Iterator[None]:
    """Raise RequestCancelled where gRPC would cancel the task that awaits a cancelled call."""
    try:
        yield
    except grpc.aio.UsageError as error:
        raise client_closed() from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise client_closed() from error
