"""grpc.aio's server, without the one request that ends it.

All calls are taken by one task. Of a call for none of the methods it decodes the path as UTF-8, and
a path that is no UTF-8 ends the task, the server and all of its calls, before an interceptor could
look. Here that task gets the calls of registered methods alone, whose paths it knows:

    Core -- registered methods --> the task of grpc.aio --> interceptors, handlers
         -- all others ----------> UNIMPLEMENTED, whatever the path
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn, cast

import grpc
import grpc.aio
from grpc._cython import cygrpc
from grpc.aio import _server

CLIENTS_FAULTS = (
    "Invalid encoding on",  # metadata that is not text
    "ExecuteBatchError raised in core by servicer method",  # a client that left during its answer
)


class ClientErrorFilter(logging.Filter):
    """Drops gRPC's log lines, with tracebacks, for faults of clients, and of peers that hang up."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(CLIENTS_FAULTS)


logging.getLogger("grpc._cython.cygrpc").addFilter(ClientErrorFilter())


def lasting_server(
    *,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    options: Sequence[tuple[str, Any]] = (),
) -> grpc.aio.Server:
    """Serves what generated code adds to it; generic handlers are never asked."""
    return cast(grpc.aio.Server, _Server(interceptors, tuple(options)))


class _Server(_server.Server):
    def __init__(
        self,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        options: Sequence[tuple[str, Any]],
    ) -> None:
        # instead of that of the base, whose only further work is to make another AioServer
        self._loop = cygrpc.get_working_loop()
        self._server = _Calls(self._loop, None, (), interceptors, options, None)


class _Calls(cygrpc.AioServer):  # type: ignore[misc]  # without types
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._refusals: set[asyncio.Task[None]] = set()

    async def _request_call(self) -> NoReturn:
        """What grpc.aio awaits for the next call that is for no registered method."""
        while True:
            refusal = asyncio.create_task(_refuse(await super()._request_call()))
            self._refusals.add(refusal)
            refusal.add_done_callback(self._refusals.discard)


async def _refuse(call: Any) -> None:
    context = cygrpc._ServicerContext(call, None, None, asyncio.get_running_loop())
    with suppress(grpc.aio.BaseError):  # AbortError, or the client has gone
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no such method")
