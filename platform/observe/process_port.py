"""The metrics and probe port of one process.

/metrics    for Prometheus: of this process, and of no other
/healthz    200 while it is well, 503 when it is to be replaced
/readyz     200 while it takes requests, 503 before, while it drains, and when it is not well
/explain    its decisions as JSON, if it has any
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from baton.core.metrics import CONTENT_TYPE
from baton.gateway.http.port.guest_server import GuestServer
from baton.platform.observe.listeners import bind_first_free

log = logging.getLogger(__name__)
uvicorns_log = logging.getLogger("uvicorn.error.process_port")
uvicorns_log.setLevel(logging.ERROR)  # otherwise every malformed request would write a line

MAX_CONNECTIONS = 64
MAX_REQUEST_BYTES = 16 << 10
"""The most bytes that a connection may send; probes and Prometheus send a few hundred."""
CONNECTION_LIMIT_S = 10.0
"""Seconds that a connection may last: it has one request, and Prometheus waits no longer by
default."""
START_POLL_S = 0.01

Scope = dict[str, Any]
Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]


@dataclass(slots=True)
class ProcessPages:
    """The answers of the port, set while the process starts."""

    metrics: Callable[[], str] = str
    is_well: Callable[[], bool] = lambda: True
    is_ready: Callable[[], bool] = lambda: False
    explain: Callable[[], Any] | None = None

    def answer(self, path: str) -> tuple[int, str]:
        match path:
            case "/metrics":
                return 200, self.metrics()
            case "/healthz":
                return _status(self.is_well())
            case "/readyz":
                return _status(self.is_well() and self.is_ready())
            case "/explain" if self.explain is not None:
                return 200, json.dumps(self.explain())
            case _:
                return 404, "there are /metrics, /healthz and /readyz\n"


@dataclass(slots=True)
class ProcessPort:
    pages: ProcessPages = field(default_factory=ProcessPages)
    port: int = 0
    """The bound one, once started."""
    _server: GuestServer | None = None
    _serving: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen at the first free one of 16 ports, or at any port."""
        listener = bind_first_free(host, port)
        self.port = listener.getsockname()[1]
        self._server = GuestServer(
            uvicorn.Config(
                self._answer,
                interface="asgi3",  # uvicorn mistakes a bound method
                http=_Brief,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
            )
        )
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(START_POLL_S)
        log.info("metrics and health on %s:%d", host, self.port)

    async def stop(self) -> None:
        """Safe to repeat, and where it was never started."""
        if self._server is None or self._serving is None:
            return
        self._server.force_exit = True
        self._server.end()
        await self._serving

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in ("GET", "HEAD"):
            status, text = self.pages.answer(scope["path"])
        else:
            status, text = 405, "only GET\n"
        kind = CONTENT_TYPE if scope["path"] == "/metrics" else "text/plain; charset=utf-8"
        body = text.encode()
        headers = [
            (b"content-type", kind.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class _Second(Exception):
    """A second request on a connection."""


class _Brief(HttpToolsProtocol):
    """A connection with a time limit and a single request. While it has no request, newer
    connections may replace it, so that idle clients cannot block probes."""

    _limit: asyncio.TimerHandle | None = None
    _opened_s = 0.0
    _num_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= MAX_CONNECTIONS:
            self._end_oldest()
        super().connection_made(transport)
        self.logger = uvicorns_log
        self._opened_s = self.loop.time()
        self._limit = self.loop.call_later(CONNECTION_LIMIT_S, transport.abort)

    def _end_oldest(self) -> None:
        """Close the oldest connection, preferably one without a request. It stops counting at
        once."""
        known = [one for one in self.connections if isinstance(one, _Brief)]
        oldest = min(known, key=lambda one: (one.cycle is not None, one._opened_s))
        self.connections.discard(oldest)
        oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._num_bytes += len(data)
        if self._num_bytes > MAX_REQUEST_BYTES:
            self.transport.abort()
        else:
            super().data_received(data)

    def on_message_begin(self) -> None:
        if self.cycle is not None:
            self.transport.pause_reading()
            raise _Second  # the parser ends
        super().on_message_begin()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is None:
            super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)


def _status(is_well: bool) -> tuple[int, str]:
    return (200, "ok\n") if is_well else (503, "not ok\n")
