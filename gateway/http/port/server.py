"""An HTTP port: uvicorn, run inside the gateway's event loop."""

from __future__ import annotations

import asyncio
import math
import socket
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from baton.gateway.access.config import GatewayConfig
from baton.gateway.access.connections import Connections
from baton.gateway.access.tls import TlsIdentity
from baton.gateway.http.port.entry import Entry
from baton.gateway.http.port.guest_server import GuestServer
from baton.gateway.http.port.timeout_protocol import (
    TimeoutProtocol,
    close_grace_s,
    timeout_protocol,
)

START_POLL_S = 0.005


class HttpServer:
    def __init__(
        self,
        app: ASGIApp,
        config: GatewayConfig,
        connections: Connections,
        *,
        tls: TlsIdentity | None = None,
    ) -> None:
        self._server = _Guest(
            uvicorn.Config(
                app,
                http=timeout_protocol(config, connections),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=config.keep_alive_s,
            ),
            tls=tls,
            handshake_limit_s=config.header_timeout_s,
        )
        self._task: asyncio.Task[None] | None = None
        self.port = 0
        """The bound port, once started."""

    async def start(self, listener: socket.socket) -> None:
        """Serve the listener's connections; it is closed at the end."""
        self.port = listener.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(START_POLL_S)
        if self._task.done():
            await self._task

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, and return when all requests have ended, at most after `grace_s`. A
        client with an open connection may send one more request shortly, which is answered with
        `connection: close`: no request is lost, and a successor serves the same port.
        """
        if self._task is None:
            return
        self._server.config.timeout_graceful_shutdown = math.ceil(grace_s)
        self._server.end()
        await self._task


class _Guest(GuestServer):
    def __init__(
        self, config: uvicorn.Config, *, tls: TlsIdentity | None, handshake_limit_s: float
    ) -> None:
        super().__init__(config)
        self._tls = tls
        self._handshake_limit_s = handshake_limit_s
        self._entries: list[Entry] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        for listener in sockets or ():
            entry = Entry(listener, self._make_protocol, self._tls, self._handshake_limit_s)
            entry.open()
            self._entries.append(entry)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for entry in self._entries:
            entry.close(close_grace_s(self.config))
        await super().shutdown(sockets)

    async def _wait_tasks_to_complete(self) -> None:
        await asyncio.gather(*(entry.wait_closed() for entry in self._entries))
        await super()._wait_tasks_to_complete()

    def _make_protocol(self) -> TimeoutProtocol:
        make: Any = self.config.http_protocol_class
        made: TimeoutProtocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made


def bind(host: str, port: int) -> socket.socket:
    """A TCP socket that a successor can bind as well, while this one drains."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
