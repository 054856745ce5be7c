"""What a gateway holds for its clients, and what it complains of."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from dataclasses import dataclass

import psutil

from baton.gateway.server import GatewayServer

GROWTH_MIB = 150
"""Of the process, from when it is warm: Python's and torch's pools, and nothing that grows."""
GROWTH_THREADS = 8
"""gRPC's own, which come and go."""


@dataclass(frozen=True, slots=True)
class Held:
    num_requests: int
    num_files: int
    num_tasks: int
    num_threads: int
    mib: float

    def beyond(self, before: Held) -> list[str]:
        found = []
        if self.num_requests:
            found.append(f"{self.num_requests} requests")
        if self.num_files > before.num_files + 2:
            found.append(f"{self.num_files - before.num_files} files")
        if self.num_tasks > before.num_tasks + 2:
            found.append(f"{self.num_tasks - before.num_tasks} tasks")
        if self.num_threads > before.num_threads + GROWTH_THREADS:
            found.append(f"{self.num_threads - before.num_threads} threads")
        if self.mib > before.mib + GROWTH_MIB:
            found.append(f"{self.mib - before.mib:.0f} MiB")
        return found


def held(server: GatewayServer) -> Held:
    gc.collect()
    process = psutil.Process()
    opened = re.search(r"^baton_gateway_open_requests\S* (\d+)", server.metrics_page(), re.M)
    assert opened is not None
    return Held(
        num_requests=int(opened[1]),
        num_files=process.num_fds(),
        num_tasks=len(asyncio.all_tasks()),
        num_threads=process.num_threads(),
        mib=process.memory_info().rss / (1 << 20),
    )


class Errors(logging.Handler):
    """What the log says at ERROR, each once."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        cause = repr(record.exc_info[1]) if record.exc_info else ""
        self.texts.setdefault(f"{record.name}: {record.getMessage()[:300]} {cause}", "")
