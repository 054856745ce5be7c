"""Calls on a thread of their own, because they take long or may never return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Found = TypeVar("Found")


def in_background(function: Callable[[], Found]) -> Future[Found]:
    """Run a function on a daemon thread, which a process that ends does not wait for."""
    future: Future[Found] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future
