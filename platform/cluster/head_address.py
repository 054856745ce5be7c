"""Whether a Ray cluster's head can be reached, before Ray joins it: Ray itself would ask for
many minutes at an address where nobody listens."""

from __future__ import annotations

import os
import socket

from baton.core.errors import Unavailable

TIMEOUT_S = 10.0


def check_head(address: str) -> None:
    """Raises Unavailable if nobody listens at `address`, or else at RAY_ADDRESS. Where neither has
    a port (empty, `auto`, a local socket), Ray finds the head itself."""
    address = address or os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:  # the port, or the name, cannot be
        reason = getattr(error, "strerror", None) or error
        raise Unavailable(
            f"no Ray cluster at {address}: {reason}; is it running, and is its port open?"
        ) from None
