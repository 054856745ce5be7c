"""Checks whether a port can be bound."""

from __future__ import annotations

import socket


def check_bindable(host: str, port: int) -> None:
    """Raises OSError if the port cannot be bound, or is in use."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
