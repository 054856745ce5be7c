"""Connections that do not wait for ever for a client to say what it wants.

    opened, or asks again --> its headers are in --> its body is in --> answered --> asks again
    |<-- header_timeout_s -->|<- request_body.py -->|              |<- keep_alive_s ->|

uvicorn has a time limit for idle connections alone, which any byte calls off. A client that is
answered before all of its body has come has `body_timeout_s` for the rest, which nobody reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from baton.core.errors import InvalidRequest
from baton.gateway.access.config import GatewayConfig
from baton.gateway.http.errors import error_body, translate
from baton.gateway.http.request_body import RequestTooSlow


class HeadersTooLarge(InvalidRequest):
    def __init__(self, limit: int) -> None:
        super().__init__(f"the request's headers are larger than {limit} bytes")


class PatientProtocol(HttpToolsProtocol):
    """One connection. At most one of its timers runs: ours, or uvicorn's for idle ones."""

    def __init__(self, gateway: GatewayConfig, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._header_timeout_s = gateway.header_timeout_s
        self._body_timeout_s = gateway.body_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._is_in_body = False
        """Headers are in, and the end of what follows them is not."""
        self._max_header_bytes = gateway.max_header_bytes
        self._num_header_bytes = 0
        """Of headers that are not in yet."""
        self._has_asked = False
        """Something of the next request's headers has come."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(self._header_timeout_s, self._on_late_headers)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._has_asked = True
        if not self._is_in_body:
            self._num_header_bytes += len(data)
        super().data_received(data)
        if self._num_header_bytes > self._max_header_bytes and not self._is_in_body:
            self._refuse(HeadersTooLarge(self._max_header_bytes))
            return
        is_asking = self._is_answered and not self._is_in_body
        is_idle = self.timeout_keep_alive_task is not None
        if is_asking and not is_idle and self._timer is None:
            self._wait(self._header_timeout_s, self._on_late_headers)

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        if sum(len(name) + len(value) for name, value in self.headers) > self._max_header_bytes:
            raise HeadersTooLarge(self._max_header_bytes)  # the parser ends: 400
        self._is_in_body, self._num_header_bytes = True, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_in_body = self._has_asked = False
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
            self._wait(self._body_timeout_s, self.transport.close)

    @property
    def _is_answered(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def _on_late_headers(self) -> None:
        if self._has_asked:
            limit_s = self._header_timeout_s
            self._refuse(RequestTooSlow(f"the headers did not arrive within {limit_s:g} s"))
        self.transport.close()

    def _refuse(self, error: InvalidRequest) -> None:
        if not self.transport.is_closing():
            self.transport.write(_refusal(error))
        self.transport.close()

    def _wait(self, limit_s: float, on_late: Callable[[], None]) -> None:
        self._timer = self.loop.call_later(limit_s, on_late)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def patient_protocol(gateway: GatewayConfig) -> type[asyncio.Protocol]:
    """A class, as that is what uvicorn wants: it makes one of it for each connection."""

    class Protocol(PatientProtocol):
        def __init__(self, **uvicorns: Any) -> None:
            super().__init__(gateway, **uvicorns)

    return Protocol


def _refusal(error: InvalidRequest) -> bytes:
    """There is no request yet that the application could answer."""
    body = msgspec.json.encode(error_body(error))
    status = HTTPStatus(translate(error).status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
