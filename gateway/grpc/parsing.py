"""What is no protobuf message at all is the caller's mistake.

gRPC's own answer is UNKNOWN, as for a bug of the server, in the words of its Python classes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import DecodeError

import grpc.aio
from baton.core.errors import InvalidRequest
from baton.gateway.grpc.errors import grpc_status

Behaviour = Callable[[Any, grpc.aio.ServicerContext[Any, Any]], Awaitable[Any]]


class RefuseMalformed(grpc.aio.ServerInterceptor):
    """Answers INVALID_ARGUMENT to requests that cannot be parsed; streams of them pass as is."""

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler: Any = await continuation(handler_call_details)
        if handler is None or handler.request_streaming or handler.request_deserializer is None:
            return handler  # type: ignore[no-any-return]
        kind = "unary_stream" if handler.response_streaming else "unary_unary"
        behaviour = _parsing(getattr(handler, kind), handler.request_deserializer)
        return handler._replace(  # type: ignore[no-any-return]
            request_deserializer=None, **{kind: behaviour}
        )


def _parsing(behaviour: Behaviour, parse: Callable[[bytes], Any]) -> Behaviour:
    async def parse_and_call(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            request = parse(data)
        except DecodeError:
            status = grpc_status(InvalidRequest("the request is not a message of its type"))
            await context.abort(status.code, status.details, status.trailing_metadata)
        return await behaviour(request, context)

    return parse_and_call
