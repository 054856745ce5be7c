"""Connections that do not wait for ever for a client, neither to say what it wants nor to read.

    opened, or asks again --> its headers are in --> its body is in --> answered --> asks again
    |<-- header_timeout_s -->|<- request_body.py -->|              |<- keep_alive_s ->|

uvicorn has a time limit for idle connections alone, which any byte calls off. A client that is
answered before all of its body has come has `body_timeout_s` for the rest, which nobody reads.
An answer that is not taken holds what uvicorn and the system buffer of it, and its request: from
time to time each connection is looked at, and aborted if it is behind and too little was taken.

HTTP/1.0 has no chunks, which uvicorn sends all the same: an answer of no known length is sent as it
is, and ends with the connection.

A body in chunks may have fields behind it (trailers), which the parser tells as it tells headers.
They are counted with the headers and dropped: what a proxy sets or strips does not come in there.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from fcntl import ioctl
from http import HTTPStatus
from termios import FIONREAD, TIOCOUTQ
from typing import Any

import msgspec
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from baton.core.errors import BatonError, InvalidRequest, RequestTooSlow, Unavailable
from baton.gateway.access.config import GatewayConfig
from baton.gateway.access.connections import Connections, Refusal
from baton.gateway.http.errors import error_body
from baton.gateway.http.translations import translate

MAX_PIPELINED = 16
"""Requests sent before the first of them is answered: each costs more here than it did to send."""

CLOSE_GRACE_S = 2.0
"""How long a connection on which nothing is asked outlives the wish to close it: a request may be
on its way already. It is answered, with `connection: close`."""

uvicorns_log = logging.getLogger("uvicorn.error.connections")
uvicorns_log.setLevel(logging.ERROR)  # or every malformed request would write a line


class HeadersTooLarge(InvalidRequest):
    def __init__(self, config: GatewayConfig) -> None:
        super().__init__(
            f"the request's headers are larger than {config.max_header_bytes} bytes, or more than "
            f"{config.max_headers}"
        )


class TooManyPipelined(InvalidRequest):
    def __init__(self) -> None:
        super().__init__(f"more than {MAX_PIPELINED} requests were sent before an answer")


class TimeoutProtocol(HttpToolsProtocol):
    """One connection. At most one of its timers runs: ours, or uvicorn's for idle ones; and the one
    for looking after what is not read."""

    def __init__(self, gateway: GatewayConfig, connections: Connections, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self.logger = uvicorns_log
        self._limits = gateway
        self._connections = connections
        self._address = ""
        self._is_counted = False
        self._why: Refusal | None = None
        """It was refused, and what for."""
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._unread: int | None = None
        """Bytes that waited for the client when it was looked at last, if it has been behind."""
        self._is_in_body = False
        """Headers are in, and the end of what follows them is not."""
        self._num_fields = self._num_field_bytes = 0
        """Headers of the request whose body is to come, and what came behind it."""
        self._num_beside = 0
        """Bytes since a request began, or a piece of its body came: of headers that are not in yet,
        of a chunk's size, or of a field behind the body."""
        self._has_asked = False
        """Something of the next request's headers has come."""
        self._is_leaving = False
        """The next answer is the last."""

    def enter(self, address: str) -> Refusal | None:
        """Take a place, or say why there is none. A connection that has none takes one when it is
        made, and gives back what it has when it is lost."""
        self._address = address
        why = self._connections.open(address)
        self._is_counted = why is None
        return why

    def leave(self) -> None:
        """Give back its place. Safe to repeat."""
        if self._is_counted:
            self._is_counted = False
            self._connections.close(self._address)

    def note(self, why: Refusal) -> None:
        """It is refused, or cut off."""
        self._connections.refuse(why, self._address)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        has_place = self._is_counted
        why = None if has_place else self.enter(self.client[0] if self.client else "")
        self._look = self.loop.call_later(self._limits.unread_timeout_s, self._look_after)
        if why is None:
            self._wait(self._limits.header_timeout_s, self._on_late_headers)
        else:
            self._refuse(why, Unavailable(f"{why}; come again later"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._look is not None:
            self._look.cancel()
        self.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._has_asked = True
        self._num_beside += len(data)
        super().data_received(data)
        if self._num_beside > self._limits.max_header_bytes:
            self._refuse(Refusal.LARGE_HEADERS, HeadersTooLarge(self._limits))
            return
        is_asking = self._is_answered and not self._is_in_body
        is_idle = self.timeout_keep_alive_task is not None
        if is_asking and not is_idle and self._timer is None:
            self._wait(self._limits.header_timeout_s, self._on_late_headers)

    def on_message_begin(self) -> None:
        self._num_fields = self._num_field_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_fields += 1
        self._num_field_bytes += len(name) + len(value)
        limits = self._limits
        if self._num_fields > limits.max_headers or self._num_field_bytes > limits.max_header_bytes:
            self._why = Refusal.LARGE_HEADERS
            raise HeadersTooLarge(limits)  # the parser ends: 400
        if not self._is_in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        if len(self.pipeline) >= MAX_PIPELINED:
            self._why = Refusal.TOO_MANY_REQUESTS
            raise TooManyPipelined
        self._is_in_body, self._num_beside = True, 0
        super().on_headers_complete()
        if self._is_leaving:
            self.cycle.keep_alive = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] < "1.1":
            app = _without_chunks(app, cycle)
        super()._start_asgi_task(cycle, app)

    def on_chunk_header(self) -> None:
        self._num_beside = 0

    def on_body(self, body: bytes) -> None:
        self._num_beside = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Called by the parser, which says nothing more of what it met."""
        self.note(self._why or Refusal.MALFORMED)
        if self._is_being_answered:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def on_message_complete(self) -> None:
        self._is_in_body = self._has_asked = False
        self._num_beside = 0
        super().on_message_complete()
        if self._is_answered:  # that was the rest of a body which nobody has read
            self._stop_waiting()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_in_body and self._is_answered and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._wait(self._limits.body_timeout_s, self.transport.close)
        elif self._is_leaving and self._is_answered and not self.transport.is_closing():
            self._close_soon()

    def shutdown(self) -> None:
        """Called by uvicorn when the connection is to end."""
        if not close_grace_s(self.config) or self.transport.is_closing():
            super().shutdown()
            return
        self._is_leaving = True
        if self._is_answered:
            self._close_soon()
        elif not self.cycle.response_started:  # or its headers have promised to keep it alive
            self.cycle.keep_alive = False

    def _close_soon(self) -> None:
        self._unset_keepalive_if_required()
        if not self._has_asked:  # or the rest of a request is awaited, with a limit of its own
            self._stop_waiting()
            self._wait(close_grace_s(self.config), self._on_close_grace)

    def resume_writing(self) -> None:
        self._unread = None
        super().resume_writing()

    @property
    def _is_answered(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _is_being_answered(self) -> bool:
        """Whether another answer would stand within one, or behind the one to the same request."""
        if self.cycle is None or not self.cycle.response_started:
            return False
        return self._is_in_body or not self.cycle.response_complete

    def _look_after(self) -> None:
        """Abort if the client has taken too little since the last look.

        While it is behind, or the connection is to close, nothing is added to what waits.
        """
        period_s = self._limits.unread_timeout_s
        is_behind = self.flow.write_paused or self.transport.is_closing()
        waiting = self._num_waiting() if is_behind else 0
        least = period_s * self._limits.min_body_bytes_per_s
        if waiting and self._unread is not None and self._unread - waiting < least:
            self.note(Refusal.UNREAD)
            self.transport.abort()
            return
        self._unread = waiting or None
        self._look = self.loop.call_later(period_s, self._look_after)

    def _num_waiting(self) -> int:
        """Bytes that the client has not taken. Those that the system keeps count as well, or a slow
        one would seem to take nothing until a large part of them is gone."""
        num_kept = 0
        with suppress(OSError, ValueError):  # it may be closed by now
            kept = ioctl(self.transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4))
            num_kept = int.from_bytes(kept, sys.byteorder)
        return self.transport.get_write_buffer_size() + num_kept

    def _num_unseen(self) -> int:
        """Bytes that came, and that nobody has read yet: closing would throw them away."""
        with suppress(OSError, ValueError):  # it may be closed by now
            came = ioctl(self.transport.get_extra_info("socket").fileno(), FIONREAD, bytes(4))
            return int.from_bytes(came, sys.byteorder)
        return 0

    def _on_late_headers(self) -> None:
        if self._has_asked:
            limit_s = self._limits.header_timeout_s
            late = RequestTooSlow(f"the headers did not arrive within {limit_s:g} s")
            self._refuse(Refusal.LATE_HEADERS, late)
        self.transport.close()

    def _on_close_grace(self) -> None:
        if self._has_asked or self._num_unseen():  # just now
            self._wait(self._limits.header_timeout_s, self._on_late_headers)
        else:
            self.transport.close()

    def _refuse(self, why: Refusal, error: BatonError) -> None:
        if not self.transport.is_closing():
            self.note(why)
            if not self._is_being_answered:
                self.transport.write(_refusal(error))
        self.transport.close()

    def _wait(self, limit_s: float, on_late: Callable[[], None]) -> None:
        self._timer = self.loop.call_later(limit_s, on_late)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def close_grace_s(config: uvicorn.Config) -> float:
    """At most what is left for the requests under way."""
    return min(CLOSE_GRACE_S, config.timeout_graceful_shutdown or 0.0)


def timeout_protocol(gateway: GatewayConfig, connections: Connections) -> type[TimeoutProtocol]:
    """A class, as that is what uvicorn wants: it makes one of it for each connection."""

    class Protocol(TimeoutProtocol):
        def __init__(self, **uvicorns: Any) -> None:
            super().__init__(gateway, connections, **uvicorns)

    return Protocol


def _without_chunks(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """`app`, whose answers are sent as they are if their length is not known before."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        is_of_known_length = False

        async def send_plain(message: Message) -> None:
            nonlocal is_of_known_length
            if message["type"] == "http.response.start":
                names = [name.lower() for name, _ in message.get("headers", ())]
                is_of_known_length = b"content-length" in names
            if not is_of_known_length:
                cycle.chunked_encoding = False
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return answer


def _refusal(error: BatonError) -> bytes:
    """There is no request yet that the application could answer."""
    body = msgspec.json.encode(error_body(error))
    status = HTTPStatus(translate(error).status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
