"""A streamed generation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

import grpc

from baton.client.calls import END_TIMEOUT_S, StreamCall
from baton.client.connection import Connection
from baton.client.errors import client_closed, from_rpc_error
from baton.client.retry import Attempts
from baton.client.stream_progress import StreamProgress
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

D = TypeVar("D")
T = TypeVar("T")


class _Responses(Protocol):
    """gRPC's call."""

    def __next__(self) -> Any: ...

    def cancel(self) -> bool: ...


class Stream(Generic[D, T]):
    """Iterate for deltas; close it, or leave its context, to stop the generation.

        with client.stream("Once upon a time") as stream:
            for delta in stream:
                print(delta.text, end="")

    Iterating raises BatonClientError. Calls that fail before the first delta are repeated, and
    connections that break later are taken up again, as the retry policy says; `timeout_s` covers
    it all.
    """

    def __init__(self, stub: InferenceStub, call: StreamCall[D, T], connection: Connection) -> None:
        self._stub = stub
        self._call = call
        self._metadata = connection.metadata
        self._progress = StreamProgress(Attempts(connection.retry, call.timeout_s))
        self._deltas: list[D] = []
        self._is_closed = False
        self._responses = self._open()

    def __enter__(self) -> Stream[D, T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[D]:
        return self

    def __next__(self) -> D:
        while not self._is_closed:
            try:
                response = next(self._responses)
            except StopIteration:
                self._is_closed = True
            except grpc.RpcError as error:
                self._go_on_after(error)
            else:
                self._progress.received(response)
                self._deltas.append(self._call.read(response))
                return self._deltas[-1]
        raise StopIteration

    def close(self) -> None:
        """Stop the generation if it still runs. Safe to repeat."""
        if self._is_closed:
            return
        self._is_closed = True
        self._responses.cancel()
        if self._progress.stream_id:
            self._end_on_server()

    def result(self) -> T:
        """Everything in one piece; waits for what has not arrived yet.

        Raises ServerFailed if the stream ended, or was closed, before its last delta.
        """
        for _ in self:
            pass
        return self._call.join(self._deltas)

    def _go_on_after(self, error: grpc.RpcError) -> None:
        """Call again after a wait, or raise `error` if that is not worth it, or not safe."""
        if self._is_closed:  # by another thread, which is why the call has failed
            return
        try:
            delay_s = self._progress.delay_s_after(from_rpc_error(error))
        except BaseException:
            self._is_closed = True
            raise
        time.sleep(delay_s)
        if not self._is_closed:
            self._responses = self._open()
        if self._is_closed:  # by another thread, which knew of the failed call alone
            self._responses.cancel()

    def _open(self) -> _Responses:
        resumption = self._progress.resumption()
        method = self._call.method if resumption is None else self._call.resume_method
        try:
            responses: _Responses = getattr(self._stub, method)(
                self._call.request if resumption is None else resumption,
                timeout=self._progress.attempts.time_left_s,
                metadata=self._metadata,
            )
        except ValueError as error:
            raise client_closed() from error
        return responses

    def _end_on_server(self) -> None:
        """Notify the server that the stream will not be resumed: a closed connection looks like a
        broken one."""
        with suppress(grpc.RpcError, ValueError):  # ValueError: the client has been closed
            self._stub.EndStream(
                pb.EndStreamRequest(stream_id=self._progress.stream_id),
                timeout=END_TIMEOUT_S,
                metadata=self._metadata,
            )
