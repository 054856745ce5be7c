"""HTTP connections with time limits: for requests to arrive, and for answers to be read.

    opened, or asks again --> its headers are in --> its body is in --> answered --> asks again
    |<-- header_timeout_s -->|<- request_body.py -->|              |<- keep_alive_s ->|

uvicorn only limits idle connections, and any byte cancels that limit. A client that is answered
before its whole body has arrived has `body_timeout_s` to send the rest, which is discarded. If the
connection is to end with that answer (a 408 or 413, say), it ends `LINGER_S` later, or when the
client closes it: a socket that is closed while data still arrives sends a reset, at which many
clients drop the answer unread. An unread answer keeps its buffers and its request in memory, so
each connection is checked at intervals, and aborted if output waits and too little of it was read.

HTTP/1.0 has no chunked encoding, although uvicorn would send it: there, an answer of unknown length
is sent unencoded and ends with the connection.

A chunked body may have trailers, which the parser reports like headers. They are counted with the
headers and dropped, so that they cannot bypass a proxy that sets or strips headers.
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
"""Pipelined requests: each costs more here than it did to send."""

CLOSE_GRACE_S = 2.0
"""Seconds that an idle connection stays open after the shutdown began, since a request may already
be on its way. It is answered with `connection: close`."""

LINGER_S = 2.0
"""Seconds in which what a client still sends is discarded, after an answer that ends the
connection: for the answer to reach it."""

uvicorns_log = logging.getLogger("uvicorn.error.connections")
uvicorns_log.setLevel(logging.ERROR)  # otherwise every malformed request would write a line


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
    """One connection. At most one of two timers runs, ours or uvicorn's for idle connections,
    besides the timer that checks for unread output."""

    def __init__(self, gateway: GatewayConfig, connections: Connections, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self.logger = uvicorns_log
        self._limits = gateway
        self._connections = connections
        self._address = ""
        self._is_counted = False
        self._why: Refusal | None = None
        """Why it was refused, if it was."""
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._unread: int | None = None
        """Unread bytes at the last check; None if there were none."""
        self._is_in_body = False
        """Whether the headers have arrived and the body has not ended."""
        self._num_fields = self._num_field_bytes = 0
        """Headers and trailers of the current request: their number and bytes."""
        self._num_beside = 0
        """Bytes since the request began or its last piece of body: of incomplete headers, a chunk's
        size line, or a trailer."""
        self._has_asked = False
        """Whether a part of the next request's headers has arrived."""
        self._is_leaving = False
        """The next answer is the last."""
        self._is_lingering = False
        """The last answer was sent; whatever arrives is discarded."""

    def enter(self, address: str) -> Refusal | None:
        """Take a place, or return why there is none. Without a call of this, the connection takes
        one when it is made; a place is given back when the connection is lost."""
        self._address = address
        why = self._connections.open(address)
        self._is_counted = why is None
        return why

    def leave(self) -> None:
        """Give its place back. Safe to repeat."""
        if self._is_counted:
            self._is_counted = False
            self._connections.close(self._address)

    def note(self, why: Refusal) -> None:
        """Note why it is refused or cut off."""
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
        if self._is_lingering:
            return
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
        self.cycle.transport = _OpenBody(self)  # type: ignore[assignment]
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
        """Called by the parser, which does not name the fault."""
        self.note(self._why or Refusal.MALFORMED)
        if self._is_being_answered:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def on_message_complete(self) -> None:
        self._is_in_body = self._has_asked = False
        self._num_beside = 0
        super().on_message_complete()
        self.cycle.transport = self.transport
        if self._is_answered:  # it was the rest of a discarded body
            self._stop_waiting()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_lingering:
            self._unset_keepalive_if_required()
        elif self._is_in_body and self._is_answered and not self.transport.is_closing():
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
        if self._is_lingering:
            return
        if self._is_answered:
            self._close_soon()
        elif not self.cycle.response_started:  # otherwise its headers have promised keep-alive
            self.cycle.keep_alive = False

    def _close_soon(self) -> None:
        self._unset_keepalive_if_required()
        if not self._has_asked:  # else the rest of a request is awaited, which has its own limit
            self._stop_waiting()
            self._wait(close_grace_s(self.config), self._on_close_grace)

    def close_after_answer(self) -> None:
        """Close the connection, once the client had time to read what was sent. Safe to repeat."""
        if self._is_lingering or self.transport.is_closing():
            return
        if not self._is_counted:  # it must not take the place that it was refused
            self.transport.close()
            return
        self._is_lingering = True
        if not self._is_answered:
            self.cycle.disconnected = True  # nothing can be sent any more
            self.cycle.message_event.set()
        with suppress(OSError):  # the client may have reset it by now
            if self.transport.can_write_eof():  # not with TLS
                self.transport.write_eof()
        self.flow.resume_reading()
        self._unset_keepalive_if_required()
        self._stop_waiting()
        self._wait(LINGER_S, self.transport.close)

    def resume_writing(self) -> None:
        self._unread = None
        super().resume_writing()

    @property
    def _is_answered(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _is_being_answered(self) -> bool:
        """Whether an answer has begun, so that an error answer would be a second one."""
        if self.cycle is None or not self.cycle.response_started:
            return False
        return self._is_in_body or not self.cycle.response_complete

    def _look_after(self) -> None:
        """Abort if the client has read too little since the last check. While output waits, or the
        connection is closing, no more is buffered.
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
        """Bytes that the client has not read, including the kernel's buffer: without it, a slow
        client would seem to read nothing until a large part of the buffer is sent."""
        num_kept = 0
        with suppress(OSError, ValueError):  # it may be closed by now
            kept = ioctl(self.transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4))
            num_kept = int.from_bytes(kept, sys.byteorder)
        return self.transport.get_write_buffer_size() + num_kept

    def _num_unseen(self) -> int:
        """Received bytes that were not read yet: closing would discard them."""
        with suppress(OSError, ValueError):  # it may be closed by now
            came = ioctl(self.transport.get_extra_info("socket").fileno(), FIONREAD, bytes(4))
            return int.from_bytes(came, sys.byteorder)
        return 0

    def _on_late_headers(self) -> None:
        if self._has_asked:
            limit_s = self._limits.header_timeout_s
            late = RequestTooSlow(f"the headers did not arrive within {limit_s:g} s")
            self._refuse(Refusal.LATE_HEADERS, late)
        else:
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
                self.close_after_answer()
                return
        self.transport.close()

    def _wait(self, limit_s: float, on_late: Callable[[], None]) -> None:
        self._timer = self.loop.call_later(limit_s, on_late)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _OpenBody:
    """The transport of an answer while its request's body may still arrive."""

    def __init__(self, protocol: TimeoutProtocol) -> None:
        self._protocol = protocol
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing

    def close(self) -> None:
        self._protocol.close_after_answer()


def close_grace_s(config: uvicorn.Config) -> float:
    """CLOSE_GRACE_S, but at most the grace period of open requests."""
    return min(CLOSE_GRACE_S, config.timeout_graceful_shutdown or 0.0)


def timeout_protocol(gateway: GatewayConfig, connections: Connections) -> type[TimeoutProtocol]:
    """A protocol class for uvicorn, which makes one instance per connection."""

    class Protocol(TimeoutProtocol):
        def __init__(self, **uvicorns: Any) -> None:
            super().__init__(gateway, connections, **uvicorns)

    return Protocol


def _without_chunks(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """`app` without chunked encoding: answers of unknown length are sent unencoded."""

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
    """The raw answer to a malformed request, which never reaches the application."""
    body = msgspec.json.encode(error_body(error))
    status = HTTPStatus(translate(error).status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
