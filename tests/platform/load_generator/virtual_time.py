"""An event loop whose time jumps to whatever is awaited next: hours of load in no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Never waits; what it would have waited is counted instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += timeout or 0.0
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, selector: _Jumping) -> None:
        super().__init__(selector)
        self._jumping = selector

    def time(self) -> float:
        return self._jumping.now


def in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end; `asyncio.get_running_loop().time` is the clock of it all."""
    with asyncio.Runner(loop_factory=lambda: _VirtualLoop(_Jumping())) as runner:
        return runner.run(main)
