"""A call's request before it has arrived.

gRPC itself begins a call with its request and waits for that without a limit, so that a call that
never sends one keeps its connection open. Here a call begins when it is opened:

    opened --> its key is checked --> its request is read, with a time limit, and parsed --> served
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.message import DecodeError

import grpc.aio
from baton.core.errors import BatonError, InvalidRequest
from baton.gateway.grpc.call_timeouts import CallTimeouts, Context

M = TypeVar("M")

ServedCall = Callable[[AsyncIterator[bytes], Context], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class IncomingRequest(Generic[M]):
    """The request that methods get; it has yet to be read."""

    parse: Callable[[bytes], M]
    messages: AsyncIterator[bytes]
    context: Context
    timeouts: CallTimeouts

    async def read(self) -> M:
        """Read the message of an authenticated caller, within the time limit of the largest HTTP
        body, since gRPC does not show how much has arrived. Raises InvalidRequest, or
        RequestTooSlow."""
        config = self.timeouts.gateway.config
        return await self._read(config.body_limit_s(config.max_body_bytes))

    async def read_unauthenticated(self) -> M:
        """Read a small message that needs no key. Raises as `read` does."""
        return await self._read(self.timeouts.gateway.config.body_limit_s(0))

    async def _read(self, limit_s: float) -> M:
        data = await self.timeouts.read(self.messages, self.context, limit_s)
        if data is None:
            raise InvalidRequest("the call ended before its request came")
        return parsed(self.parse, data)


def parsed(parse: Callable[[bytes], M], data: bytes) -> M:
    """Parse a message. gRPC itself would answer UNKNOWN, as for a bug of the server."""
    try:
        return parse(data)
    except DecodeError as error:
        raise InvalidRequest("the request is not a message of its type") from error


class BeginAtOnce(grpc.aio.ServerInterceptor):
    """Begins calls before their requests have arrived, and ends them with Baton's errors. gRPC
    treats each as a stream, also of one message: on the wire it is the same."""

    def __init__(self, timeouts: CallTimeouts) -> None:
        self._timeouts = timeouts

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        if handler.request_streaming:
            call = self._streaming(handler.stream_stream, handler.request_deserializer)
        else:
            method = handler.unary_stream if handler.response_streaming else handler.unary_unary
            call = self._calling(method, handler.request_deserializer)
        return grpc.stream_stream_rpc_method_handler(
            self._served(call), None, handler.response_serializer
        )

    def _served(self, call: ServedCall) -> ServedCall:
        """Responses are written here or by the method, since gRPC's own writes have no time
        limit."""

        async def served(messages: AsyncIterator[bytes], context: Context) -> None:
            with self._timeouts.calls.one():
                try:
                    await call(messages, context)
                except BatonError as error:
                    await self._timeouts.abort(context, error)

        return served

    def _calling(self, method: Any, parse: Callable[[bytes], Any]) -> ServedCall:
        """Serve a method that gets an IncomingRequest, and returns its response or writes it."""

        async def call(messages: AsyncIterator[bytes], context: Context) -> None:
            incoming = IncomingRequest(parse, messages, context, self._timeouts)
            response = await method(incoming, context)
            if response is not None:
                await self._timeouts.write(context, response)

        return call

    def _streaming(self, method: Any, parse: Callable[[bytes], Any]) -> ServedCall:
        """Serve a method that is a generator, and gets requests as they come."""

        async def each(messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
            limit_s = self._timeouts.gateway.config.body_limit_s(0)
            while (data := await self._timeouts.read(messages, context, limit_s)) is not None:
                yield parsed(parse, data)

        async def call(messages: AsyncIterator[bytes], context: Context) -> None:
            async for response in method(each(messages, context), context):
                await self._timeouts.write(context, response)

        return call
