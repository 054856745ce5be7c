"""A new gateway learns what replicas have cached before it places anything.

    first replicas heard of --> part, part ... --> all have told, or nobody says anything more: over

Prompts that were placed meanwhile would be computed beside where they are cached, and leave copies
there. A replica that says nothing holds nobody up for longer than `PAUSE_S`; who comes later has
nothing cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from baton.core.clock import Clock, monotonic
from baton.core.ids import Epoch

PAUSE_S = 0.5
LIMIT_S = 10.0


class WarmUp:
    """Belongs to an event loop. `on_over` is called once."""

    def __init__(self, on_over: Callable[[], None], clock: Clock = monotonic) -> None:
        self.is_over = False
        self._on_over = on_over
        self._clock = clock
        self._awaited: set[Epoch] = set()
        self._began_at: float | None = None
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, replicas: Iterable[Epoch]) -> None:
        """The replicas that there are. Nothing happens from the second time on."""
        awaited = set(replicas)
        if self._began_at is None and awaited:
            self._awaited = awaited
            self._began_at = self._heard_at = self._clock()
            self._look()

    def hear(self, epoch: Epoch, *, is_all: bool) -> None:
        """Some of what a replica has cached is known; `is_all`: or there is no more to be heard."""
        self._heard_at = self._clock()
        if is_all:
            self._awaited.discard(epoch)
            if not self._awaited:
                self._end()

    def close(self) -> None:
        """Safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._clock()
        assert self._began_at is not None
        if now - self._heard_at >= PAUSE_S or now - self._began_at >= LIMIT_S:
            self._end()
        elif not self.is_over:
            wait_s = self._heard_at + PAUSE_S - now
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _end(self) -> None:
        self.close()
        if not self.is_over and self._began_at is not None:
            self.is_over = True
            self._on_over()
