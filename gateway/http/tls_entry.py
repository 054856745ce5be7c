"""Where encrypted connections come in: each has a place from when it is accepted.

    accepted --> a place --> handshake --> its protocol, which gives the place back at its end
        no place: closed         late, or fails: closed, and the place is given back

An event loop's own server makes connections known once hands are shaken: until then nobody would
count them, and whoever opens them without a word would take the process's files.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from baton.gateway.access.connections import Refusal
from baton.gateway.http.patience import PatientProtocol

log = logging.getLogger(__name__)

BACKLOG = 2048
PAUSE_S = 1.0
"""After a connection that could not be accepted, for want of files."""


class TlsEntry:
    """Of one listening socket. It is closed as asyncio's servers are."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], PatientProtocol],
        context: ssl.SSLContext,
        limit_s: float,
    ) -> None:
        """Hands are shaken within `limit_s`, and so is farewell."""
        self._listener = listener
        self._make_protocol = make_protocol
        self._context = context
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def open(self) -> None:
        self._listener.listen(BACKLOG)
        self._go_on()

    def close(self) -> None:
        """Accept nothing more, and let go of those who have yet to shake hands."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        for handshake in self._handshakes:
            handshake.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _go_on(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            log.error("no connection can be accepted for %g s: %s", PAUSE_S, error)
            self._loop.remove_reader(self._listener)
            self._pause = self._loop.call_later(PAUSE_S, self._go_on)
            return
        connection.setblocking(False)
        handshake = self._loop.create_task(self._shake_hands(connection, address[0]))
        self._handshakes.add(handshake)
        handshake.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, connection: socket.socket, address: str) -> None:
        protocol = self._make_protocol()
        if why := protocol.enter(address):
            protocol.note(why)
            connection.close()
            return
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._limit_s,
                ssl_shutdown_timeout=self._limit_s,
            )
        except (ssl.SSLError, ConnectionAbortedError):  # the latter: it is late
            protocol.note(Refusal.HANDSHAKE)
        except OSError:
            pass  # it has gone
        finally:
            if protocol.transport is None:  # it will not hear of its end
                protocol.leave()
