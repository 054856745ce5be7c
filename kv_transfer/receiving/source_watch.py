"""Watches one handoff for news from the prefill replica, and ends the wait when they fail to come.

    asked -> progress, ... -> granted -> progress, pieces, ... -> first token -> pieces, ... -> here
    `-- nothing for too long --> Unavailable

A replica that tells no progress is watched from its first token on: the time limit of the handoff
holds in any case. Time passes in looks, and only while something is awaited of the replica: time in
which our own loop, or our own engine, keeps us from listening is not the peer's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from baton.core.errors import Unavailable
from baton.core.replicas import ReplicaAddress
from baton.decode_service.prefill_patience import PrefillPatience

LOOK_S = 0.2


class PrefillWatch:
    """Belongs to one event loop and one handoff."""

    def __init__(self, patience: PrefillPatience, peer: ReplicaAddress) -> None:
        self._loop = asyncio.get_running_loop()
        self._patience = patience
        self._peer = peer
        self._began_at = self._loop.time()
        self._patience.asked(peer.epoch, self._began_at)
        self._scope = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self._is_armed = False
        """Whether its silence says anything."""
        self._num_awaited = 0
        """Of its streams: how many somebody listens to at this moment."""
        self._silent_s = 0.0
        self._longest_s = 0.0
        """Of the silences so far."""
        self._why = ""

    @asynccontextmanager
    async def waits(self) -> AsyncIterator[None]:
        """Raises Unavailable within the context when the replica gets nowhere."""
        try:
            async with self._scope:
                self._look_later()
                yield
        except TimeoutError:
            if not self._scope.expired():
                raise
            now = self._loop.time()
            self._patience.missed(self._peer.epoch, self._why, self._began_at, now)
            raise Unavailable(f"{self._peer.replica_id} {self._why}") from None
        finally:
            if self._timer is not None:
                self._timer.cancel()
        self._patience.succeeded(self._peer.epoch, self._longest_s, self._loop.time())

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within it one of the replica's streams is awaited."""
        if not self._num_awaited:
            self._silent_s = 0.0
        self._num_awaited += 1
        try:
            yield
        finally:
            self._num_awaited -= 1

    def hear(self) -> None:
        """News have come."""
        self._longest_s = max(self._longest_s, self._silent_s)
        self._silent_s = 0.0

    def progressed(self) -> None:
        """It has told that it advances, or has a first token: from now on its silence counts."""
        self._is_armed = True
        self.hear()

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        if self._num_awaited and self._is_armed:
            self._silent_s += LOOK_S
            if self._silent_s >= self._patience.silence_s(self._peer.epoch, self._loop.time()):
                self._why = f"got nowhere for {self._silent_s:.1f} s"
                self._scope.reschedule(self._loop.time())
                return
        self._look_later()
