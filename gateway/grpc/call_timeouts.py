"""Time limits for gRPC clients: to send their requests, and to read responses.

gRPC exposes neither connections nor the progress within a message, so whole messages are timed.
Clients that are too slow are counted with the connections of the HTTP ports.

A call that is given up ends here, and its generation stops. gRPC itself holds the call, with its
buffers, until the client reads the status, which waits behind the unread answer, or disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from google.protobuf.message import Message

import grpc.aio
from baton.core.clock import monotonic
from baton.core.errors import Cancelled, RequestTooSlow, Unavailable
from baton.gateway.access.connections import Connections, Refusal
from baton.gateway.grpc.errors import grpc_status
from baton.gateway.requests.gateway import Gateway

Context = grpc.aio.ServicerContext[Any, Any]


WINDOW_BYTES = 65_536
"""HTTP/2's usual flow-control window. Clients acknowledge parts of it, not messages, so that a
small message may have to wait until so many bytes were read."""


LAST_REQUESTS_S = 5.0
"""Seconds to wait for requests that are arriving when this gateway stops."""


class SlowReader(Cancelled):
    """The client does not read its answer."""


class OpenCalls:
    """Open calls: neither answered nor given up."""

    def __init__(self) -> None:
        self._num = 0
        self._reading: set[asyncio.Timeout] = set()
        self._is_leaving = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._idle_since_s = monotonic()

    @contextmanager
    def one(self) -> Iterator[None]:
        self._num += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num -= 1
            if not self._num:
                self._idle_since_s = monotonic()
                self._idle.set()

    @property
    def is_leaving(self) -> bool:
        return self._is_leaving

    def leave(self) -> None:
        """From now on, wait no longer than LAST_REQUESTS_S for requests that have yet to arrive."""
        self._is_leaving = True
        for timeout in self._reading:
            _shorten(timeout)

    @asynccontextmanager
    async def reading(self, limit_s: float) -> AsyncIterator[None]:
        """Context in which a request is read. Raises TimeoutError after `limit_s`, or soon if this
        gateway stops."""
        async with asyncio.timeout(limit_s) as timeout:
            if self._is_leaving:
                _shorten(timeout)
            self._reading.add(timeout)
            try:
                yield
            finally:
                self._reading.discard(timeout)

    @property
    def idle_s(self) -> float | None:
        """Seconds without open calls. None while there are some."""
        return None if self._num else monotonic() - self._idle_since_s

    async def wait_until_idle(self) -> None:
        await self._idle.wait()


def _shorten(timeout: asyncio.Timeout) -> None:
    soon, when = asyncio.get_running_loop().time() + LAST_REQUESTS_S, timeout.when()
    if when is not None and not timeout.expired() and soon < when:
        timeout.reschedule(soon)


@dataclass(frozen=True, slots=True)
class CallTimeouts:
    gateway: Gateway
    connections: Connections
    calls: OpenCalls = field(default_factory=OpenCalls)

    async def read(
        self, messages: AsyncIterator[bytes], context: Context, limit_s: float
    ) -> bytes | None:
        """The next message; None at the end. Raises RequestTooSlow if it is late, and Unavailable
        if this gateway stops meanwhile."""
        try:
            async with self.calls.reading(limit_s):
                return await anext(messages, None)
        except TimeoutError as error:
            if self.calls.is_leaving:
                raise Unavailable(
                    "the gateway shuts down, and the request has not come; send it again"
                ) from error
            self.connections.refuse(Refusal.LATE_REQUEST, address_of(context))
            raise RequestTooSlow(f"the request did not arrive within {limit_s:g} s") from error

    async def write(self, context: Context, response: Message) -> None:
        """Send a response, with more time for a large one. Raises SlowReader if it is not read."""
        config = self.gateway.config
        num_bytes = max(response.ByteSize(), WINDOW_BYTES)
        limit_s = config.unread_timeout_s + num_bytes / config.min_body_bytes_per_s
        try:
            async with asyncio.timeout(limit_s):
                await context.write(response)
        except TimeoutError as error:
            self.connections.refuse(Refusal.UNREAD, address_of(context))
            raise SlowReader(f"the client has read too little for {limit_s:.1f} s") from error

    async def abort(self, context: Context, error: Exception) -> None:
        """End the call with `error`. Raises grpc.aio.AbortError, unless the client does not read
        the status either."""
        status = grpc_status(error)
        limit_s = 0.0 if isinstance(error, SlowReader) else self.gateway.config.unread_timeout_s
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await context.abort(status.code, status.details, status.trailing_metadata)


def address_of(context: Context) -> str:
    """The client's address. gRPC writes it as `ipv4:10.0.0.1:5` or `ipv6:%5B::1%5D:5`."""
    _, _, rest = unquote(context.peer()).partition(":")
    return rest.rpartition(":")[0].strip("[]")
