"""Ports that stay free until a test listens there.

One that the system chose, and that was let go, may be given to anybody before it is used: those
below the system's are given to nobody, and each worker of a run has some of its own.
"""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack
from pathlib import Path

SYSTEM = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST, LAST = 20_000, 32_768
"""Above those of Ray's workers, below those that Linux gives away."""
NUM_WORKERS = 8


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """One after the other, which nobody listens on."""
    last = min(LAST, int(SYSTEM.read_text().split()[0])) if SYSTEM.exists() else LAST
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % NUM_WORKERS
    share = (max(last, FIRST + 8_000) - FIRST) // NUM_WORKERS
    start = FIRST + worker * share
    while True:
        first = random.SystemRandom().randrange(start, start + share - count)
        ports = list(range(first, first + count))
        try:
            with ExitStack() as stack:
                for port in ports:
                    stack.enter_context(socket.create_server((host, port)))
        except OSError:
            continue
        return ports
