"""Runs blocking disk calls on threads of their own, so that a hanging disk blocks no others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

R = TypeVar("R")

NUM_THREADS = 4
PATIENCE_S = 300.0
"""The most seconds to read a whole input or journal on a busy machine."""


class Disk:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="batches")

    async def __call__(self, work: Callable[..., R], *args: object) -> R:
        """Run `work`. Raises TimeoutError, an OSError, if the disk hangs."""
        call = asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
        async with asyncio.timeout(PATIENCE_S):
            return await call

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
