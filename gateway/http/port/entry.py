"""Accepts connections; each counts against the limit from the moment it is accepted.

    accepted --> a place --> handshake, if encrypted --> its protocol, which gives the place back
        no place: closed         late, or fails: closed, and the place is given back

asyncio's own server announces TLS connections only after the handshake: until then they would not
be counted, and clients that never send could use up the process's open files. When closed, it also
drops connections that were opened but not yet accepted.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from baton.gateway.access.connections import Refusal
from baton.gateway.access.tls import TlsIdentity
from baton.gateway.http.port.timeout_protocol import TimeoutProtocol

log = logging.getLogger(__name__)

BACKLOG = 2048
PAUSE_S = 1.0
"""Seconds to pause after a connection could not be accepted because of the limit of open files."""


class Entry:
    """Accepts on one listening socket; closed like an asyncio server."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], TimeoutProtocol],
        tls: TlsIdentity | None,
        limit_s: float,
    ) -> None:
        """`limit_s`: time limit of a TLS handshake, and of its shutdown."""
        self._listener = listener
        self._make_protocol = make_protocol
        self._tls = tls
        self._limit_s = limit_s if tls is not None else None
        self._loop = asyncio.get_running_loop()
        self._newcomers: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False

    def open(self) -> None:
        self._listener.listen(BACKLOG)
        self._go_on()

    def close(self, grace_s: float = 0.0) -> None:
        """Accept the connections that are already open, then no more; drop those whose handshake is
        not over after `grace_s`. The caller closes the listener right after."""
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        while grace_s and self._accept():
            pass
        self._loop.call_later(grace_s, self._let_go)

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._newcomers, return_exceptions=True)

    def _go_on(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> bool:
        """Accept one connection; whether there was one."""
        try:
            connection, address = self._listener.accept()
        except BlockingIOError:
            return False
        except (InterruptedError, ConnectionAbortedError):
            return True  # the client has already disconnected
        except OSError as error:
            if not self._is_closed:
                log.error("no connection can be accepted for %g s: %s", PAUSE_S, error)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(PAUSE_S, self._go_on)
            return False
        connection.setblocking(False)
        newcomer = self._loop.create_task(self._welcome(connection, address[0]))
        self._newcomers.add(newcomer)
        newcomer.add_done_callback(self._newcomers.discard)
        return True

    async def _welcome(self, connection: socket.socket, address: str) -> None:
        protocol = self._make_protocol()
        if self._tls is not None and (why := protocol.enter(address)):
            protocol.note(why)
            connection.close()
            return
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=None if self._tls is None else self._tls.context(),
                ssl_handshake_timeout=self._limit_s,
                ssl_shutdown_timeout=self._limit_s,
            )
        except (ssl.SSLError, ConnectionAbortedError):  # TimeoutError: the handshake is late
            protocol.note(Refusal.HANDSHAKE)
        except OSError:
            pass  # already disconnected
        finally:
            if protocol.transport is None:  # its `connection_lost` will not be called
                protocol.leave()
        if self._is_closed and protocol.transport is not None:
            protocol.shutdown()

    def _let_go(self) -> None:
        for newcomer in self._newcomers:
            newcomer.cancel()
