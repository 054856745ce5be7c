"""Sockets of this machine at which a replica is reached by others of the same user.

Their names are in Linux's abstract namespace, which belongs to the network namespace. The first
`KEY_BYTES` of a client say what it wants: it got that key by another way.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from dataclasses import dataclass
from weakref import WeakSet

from baton.kv_transfer.transport.control.socket_lines import SocketCall

KEY_BYTES = 16
VISIT_TIMEOUT_S = 5.0

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


def new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


async def visit(connection: socket.socket, name: str, key: bytes) -> None:
    """Connect, and say what one came for. Raises OSError, also if another user listens there."""
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    await loop.sock_connect(connection, f"\0{name}")
    check_user(connection)
    await loop.sock_sendall(connection, key)


def check_user(connection: socket.socket) -> None:
    """Raises OSError unless the process at the other end is run by our user."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != os.getuid():
        raise OSError(f"the other end is run by user {uid}")


@dataclass(frozen=True, slots=True)
class SocketDoor:
    """A sender's socket, as a way for control streams: implements `Door`."""

    socket_name: str
    key: bytes
    calls: WeakSet[SocketCall]
    """The sockets that were made: their owner closes them."""

    @property
    def name(self) -> str:
        return f"socket {self.socket_name}"

    async def call(self) -> SocketCall | None:
        connection = new_socket()
        try:
            async with asyncio.timeout(VISIT_TIMEOUT_S):
                await visit(connection, self.socket_name, self.key)
                call = await SocketCall.over(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | TimeoutError):
                return None
            raise
        self.calls.add(call)
        return call
