"""A new gateway learns what replicas have cached before it places anything.

    first replicas heard of --> part, part ... --> all have told, or nobody says anything more: over

Prompts that were placed meanwhile would be computed beside where they are cached, and leave copies
there. A replica that says nothing holds nobody up for longer than `PAUSE_S`, unless others have yet
to be asked; who comes later has nothing cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from baton.core.clock import Clock, monotonic
from baton.core.ids import Epoch

PAUSE_S = 0.5
LIMIT_S = 10.0
LATE_S = 0.1


class WarmUp:
    """Belongs to an event loop. `on_over` is called once. `is_any_held_up`: whether some have not
    even been asked, as their turn has not come (`opening_slots.py`): they are not silent."""

    def __init__(
        self,
        on_over: Callable[[], None],
        clock: Clock = monotonic,
        is_any_held_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self.is_over = False
        self._is_any_held_up = is_any_held_up
        self._on_over = on_over
        self._clock = clock
        self._awaited: set[Epoch] = set()
        self._began_at: float | None = None
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = 0.0
        """When to look again, by the event loop's clock."""

    def begin(self, replicas: Iterable[Epoch]) -> None:
        """The replicas that there are. Nothing happens from the second time on."""
        awaited = set(replicas)
        if self._began_at is None and awaited:
            self._awaited = awaited
            self._began_at = self._heard_at = self._clock()
            self._look_in(PAUSE_S)

    def hear(self, epoch: Epoch, *, is_all: bool) -> None:
        """Some of what a replica has cached is known; `is_all`: or there is no more to be heard."""
        self.go_on()
        if is_all:
            self.lose(epoch)

    def lose(self, epoch: Epoch) -> None:
        """Nothing is awaited of it any more."""
        self._awaited.discard(epoch)
        if not self._awaited:
            self._end()

    def go_on(self) -> None:
        """Start the pause anew: nothing was heard because this gateway connects to some only
        now."""
        self._heard_at = self._clock()

    def close(self) -> None:
        """Safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now, late_s = self._clock(), asyncio.get_running_loop().time() - self._look_at
        assert self._began_at is not None
        if now - self._began_at >= LIMIT_S:
            self._end()
        elif late_s >= LATE_S:  # our own loop stood still: what was said meanwhile lies unread
            self._look_in(PAUSE_S)
        elif self._is_any_held_up():
            self.go_on()
            self._look_in(PAUSE_S)
        elif now - self._heard_at >= PAUSE_S:
            self._end()
        else:
            self._look_in(self._heard_at + PAUSE_S - now)

    def _look_in(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._look_at = loop.time() + wait_s
        self._timer = loop.call_later(wait_s, self._look)

    def _end(self) -> None:
        self.close()
        if not self.is_over and self._began_at is not None:
            self.is_over = True
            self._on_over()
