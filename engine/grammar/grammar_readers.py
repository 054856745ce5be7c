"""Reads grammars in threads that have a large stack, with a time limit.

llguidance reads a grammar recursively, as deep as its references are nested, and a stack overflow
would end the process. Other grammars, intersections of many expressions, would take it hours. As
Python cannot end a thread, one that takes too long is abandoned, and the number of threads is
limited. Does not import torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from baton.core.errors import Overloaded

T = TypeVar("T")

STACK_BYTES = 512 << 20
"""Stack size of a thread. It is address space only; memory is allocated as it is used. A nesting
level of a grammar takes up to 10 kB of stack and at least 6 bytes of source."""
MAX_READ_S = 10.0
MAX_READERS = 4

_STACK_SIZE = threading.Lock()
"""Guards the stack size of new threads, which is one setting for the whole process."""


class GrammarReaders:
    """Safe to use from several threads."""

    def __init__(self, *, max_read_s: float = MAX_READ_S, max_readers: int = MAX_READERS) -> None:
        self._max_read_s = max_read_s
        self._free = threading.BoundedSemaphore(max_readers)

    def read(self, grammar: Callable[[], T]) -> T:
        """Call `grammar` in a thread of its own and return its result, or raise its exception.

        Raises Overloaded if that takes too long, as it may for a good grammar on a busy machine, or
        if all threads are busy for that long.
        """
        if not self._free.acquire(timeout=self._max_read_s):
            raise Overloaded("too many grammars are being read; try again later")
        reading: Future[T] = Future()

        def run() -> None:
            try:
                reading.set_result(grammar())
            except BaseException as error:
                reading.set_exception(error)
            finally:
                self._free.release()

        _start(threading.Thread(target=run, name="baton-grammar-reader", daemon=True))
        try:
            return reading.result(self._max_read_s)
        except TimeoutError:
            raise Overloaded(
                f"reading the grammar took over {self._max_read_s:g} s; try again later, and "
                "should that not help, write fewer intersections and repetitions"
            ) from None


def _start(thread: threading.Thread) -> None:
    with _STACK_SIZE:
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
