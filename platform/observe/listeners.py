"""Ports that processes of one role share out on a machine: each has the first that is free."""

from __future__ import annotations

import logging
import socket

log = logging.getLogger(__name__)

NUM_PORTS = 16
"""Processes of one role that can share a machine and still have ports that are known."""
CONNECT_LIMIT_S = 1.0


def bind_first_free(host: str, port: int) -> socket.socket:
    """Raises OSError only if nothing at all can be bound there."""
    for number in range(port, port + NUM_PORTS) if port else ():
        try:
            return _bind(host, number)
        except OSError:
            continue
    if port:
        log.warning("ports %d to %d are taken on %s", port, port + NUM_PORTS - 1, host)
    return _bind(host, 0)


def first_listening(host: str, port: int) -> int:
    """The first of them that somebody listens on, or `port` if nobody does."""
    for number in range(port, min(port + NUM_PORTS, 1 << 16)):
        try:
            with socket.create_connection((host, number), timeout=CONNECT_LIMIT_S):
                return number
        except OSError:
            continue
    return port


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # until somebody does, others may bind it as well
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
