"""Threads that read pieces: many in all, few for one sender.

A sender that stands still holds up the readers of its own pieces, and leaves the others their
threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Share(Executor):
    """Some of another executor's threads; what is more than they can do waits, in order."""

    def __init__(self, threads: Executor, max_threads: int) -> None:
        self._threads = threads
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._num_threads = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Raises RuntimeError once the other executor is shut down."""
        future: Future[T] = Future()
        job = partial(_run, future, partial(function, *args, **kwargs))
        with self._lock:
            if self._num_threads < self._max_threads:
                self._threads.submit(self._work)
                self._num_threads += 1
            self._waiting.append(job)
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._num_threads -= 1
                    return
                job = self._waiting.popleft()
            job()
            del job  # it refers to a piece


def _run(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
