"""Port ranges per role: each process on a machine takes the first free port."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

log = logging.getLogger(__name__)

NUM_PORTS = 16
"""Ports in a range, and so processes of one role with known ports on a machine."""
CONNECT_LIMIT_S = 1.0
SOCKETS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""Linux's, a line each: `0: 0100007F:1F42 00000000:0000 0A ...`; the eighth word is the owner."""
LISTENS = "0A"
ROOT = 0


def bind_first_free(host: str, port: int) -> socket.socket:
    """Raises OSError only if nothing at all can be bound there."""
    for number in range(port, port + NUM_PORTS) if port else ():
        try:
            return _bind(host, number)
        except OSError:
            if strangers := foreign_listeners(number):
                log.warning(
                    "port %d is taken by a process of another user (uid %s), whom tools would ask "
                    "for this one",
                    number,
                    ", ".join(map(str, sorted(strangers))),
                )
    if port:
        log.warning("ports %d to %d are taken on %s", port, port + NUM_PORTS - 1, host)
    return _bind(host, 0)


def first_listening(host: str, port: int) -> int:
    """The first port of the range with a listener, or `port` if there is none."""
    for number in range(port, min(port + NUM_PORTS, 1 << 16)):
        try:
            with socket.create_connection((host, number), timeout=CONNECT_LIMIT_S):
                return number
        except OSError:
            continue
    return port


def foreign_listeners(port: int) -> frozenset[int]:
    """Other users, except root, that listen there; empty if the system does not say."""
    owners = set[int]()
    for table in SOCKETS:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for words in map(str.split, lines):
            if words[3] == LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                owners.add(int(words[7]))
    return frozenset(owners - {ROOT, os.geteuid()})


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # until listen(), others may bind it, too
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
