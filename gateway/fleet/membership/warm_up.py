"""A new gateway learns the replicas' caches before it places anything.

    first replicas known --> part, part ... --> all have reported, or no more reports come: over

Prompts placed earlier would be computed although they are cached elsewhere, and leave copies. A
silent replica delays the start by `PAUSE_S` at most, unless others have yet to be asked. Replicas
that join later have nothing cached. From `ENOUGH_AFTER_S` on, half of the caches are enough: most
cached prompts are then found, and waiting longer would cost the other requests more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from baton.core.clock import Clock, monotonic
from baton.core.ids import Epoch

PAUSE_S = 0.5
ENOUGH_AFTER_S, ENOUGH = 2.5, 0.5
"""Seconds from which on this share of the replicas is enough."""
LIMIT_S = 10.0
LATE_S = 0.1


class WarmUp:
    """Belongs to an event loop. `on_over` is called once. `is_any_held_up`: whether some replicas
    still wait for their turn to be asked (`opening_slots.py`), so their silence does not count."""

    def __init__(
        self,
        on_over: Callable[[], None],
        clock: Clock = monotonic,
        is_any_held_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._has_begun, self._over = asyncio.Event(), asyncio.Event()
        self._is_any_held_up = is_any_held_up
        self._on_over = on_over
        self._clock = clock
        self._awaited: set[Epoch] = set()
        self._num_enough = 0
        """Warm-up is over once at most this many replicas are awaited."""
        self._began_at: float | None = None
        self._progressed_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = 0.0
        """When to look again, by the event loop's clock."""

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    @property
    def is_under_way(self) -> bool:
        return self._has_begun.is_set() and not self.is_over

    async def until_begun(self) -> None:
        await self._has_begun.wait()

    async def until_over(self) -> None:
        await self._over.wait()

    def begin(self, replicas: Iterable[Epoch], *, are_all: bool = False) -> None:
        """Begin with the known replicas. `are_all`: no others exist, even if there are none at all.
        Later calls do nothing."""
        awaited = set(replicas)
        if self._began_at is not None or not (awaited or are_all):
            return
        self._awaited = awaited
        self._num_enough = int(ENOUGH * len(awaited))
        self._began_at = self._progressed_at = self._clock()
        self._has_begun.set()
        if awaited:
            self._look_in(PAUSE_S)
        else:
            self._end()

    def observe(self, epoch: Epoch, *, is_all: bool) -> None:
        """Take in a part of a replica's cache; `is_all`: no more will come."""
        self.go_on()
        if is_all:
            self.lose(epoch)

    def lose(self, epoch: Epoch) -> None:
        """Stop waiting for a replica."""
        self._awaited.discard(epoch)
        if not self._awaited or self._is_enough():
            self._end()

    def go_on(self) -> None:
        """Restart the pause: the silence was due to replicas that this gateway connects to only
        now."""
        self._progressed_at = self._clock()

    def close(self) -> None:
        """Safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now, late_s = self._clock(), asyncio.get_running_loop().time() - self._look_at
        assert self._began_at is not None
        under_way_s = now - self._began_at
        if self._is_enough() or under_way_s >= LIMIT_S:
            self._end()
        elif late_s >= LATE_S:  # our own loop stalled: reports of that time are still unread
            self._look_in(PAUSE_S)
        elif self._is_any_held_up():
            self.go_on()
            self._look_in(PAUSE_S)
        elif now - self._progressed_at >= PAUSE_S:
            self._end()
        else:
            self._look_in(self._progressed_at + PAUSE_S - now)

    def _is_enough(self) -> bool:
        if self._began_at is None or len(self._awaited) > self._num_enough:
            return False
        return self._clock() - self._began_at >= ENOUGH_AFTER_S

    def _look_in(self, wait_s: float) -> None:
        assert self._began_at is not None
        enough_in_s = self._began_at + ENOUGH_AFTER_S - self._clock()
        if enough_in_s > 0:
            wait_s = min(wait_s, enough_in_s)
        loop = asyncio.get_running_loop()
        self._look_at = loop.time() + wait_s
        self._timer = loop.call_later(wait_s, self._look)

    def _end(self) -> None:
        self.close()
        if not self.is_over and self._began_at is not None:
            self._over.set()
            self._on_over()
