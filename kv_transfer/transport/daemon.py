"""Runs calls that may block for long on a daemon thread, so that no event loop waits for them.

    event loop:  future <- call(function)         its thread: one function after the other

Unlike a pool's threads these are not joined when a loop or the process ends: a peer that stands
still can keep a call of torch.distributed for many seconds.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class DaemonThread:
    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def post(self, job: Callable[[], None]) -> None:
        """Run `job`, which raises nothing, after all that came before."""
        self._jobs.put(job)

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """The result or exception of `function`, run after all that came before.

        Cancelling the future does not stop the function.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        done.add_done_callback(_mark_seen)

        def job() -> None:
            try:
                settle = partial(_settle, done.set_result, function())
            except Exception as error:
                settle = partial(_settle, done.set_exception, error)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, done)

        self.post(job)
        return done

    def stop(self) -> None:
        """Return at once. What was posted before still runs; what comes later never does."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # it may be the last that refers to a pair or a buffer


def _settle(set_: Callable[[R], None], outcome: R, done: asyncio.Future[T]) -> None:
    if not done.done():
        set_(outcome)


def _mark_seen(done: asyncio.Future[T]) -> None:
    """A failure is told once, to the waiter, if there still is one."""
    if not done.cancelled():
        done.exception()
