"""Watches one handoff for news from the prefill replica, and ends the wait when they fail to come.

    asked -> progress, ... -> granted -> progress, pieces, ... -> first token -> pieces, ... -> here
    `-- nothing for too long; or granted, and no first token for too long --> Unavailable

A replica that tells no progress is watched from its first token on: the time limit of the handoff
holds in any case. Time passes in looks, and only while something is awaited of the replica: time in
which our own loop, or our own engine, keeps us from listening is not the peer's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from baton.core.errors import Unavailable
from baton.core.messages import ReplicaAddress
from baton.decode_service.prefill_patience import PrefillPatience

LOOK_S = 0.2


class PrefillWatch:
    """Belongs to one event loop and one handoff."""

    def __init__(self, patience: PrefillPatience, peer: ReplicaAddress) -> None:
        self._loop = asyncio.get_running_loop()
        self._patience = patience
        self._peer = peer
        self._scope = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self._is_armed = False
        """Whether its silence says anything."""
        self._num_awaited = 0
        """Of its streams: how many somebody listens to at this moment."""
        self._silent_s = 0.0
        self._longest_s = 0.0
        """Of the silences so far."""
        self._computing_s: float | None = None
        """Since the grant; None before it, and once the first token is there."""
        self._num_tokens = 0
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
            self._patience.missed(self._peer.epoch, self._why, self._loop.time())
            raise Unavailable(f"{self._peer.replica_id} {self._why}") from None
        finally:
            if self._timer is not None:
                self._timer.cancel()
        self._patience.succeeded(self._peer.epoch, self._longest_s, self._loop.time())

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within it one of the replica's streams is awaited."""
        self._num_awaited += 1
        try:
            yield
        finally:
            self._num_awaited -= 1
            if not self._num_awaited:
                self._silent_s = 0.0

    def hear(self) -> None:
        """News have come."""
        self._longest_s = max(self._longest_s, self._silent_s)
        self._silent_s = 0.0

    def progressed(self) -> None:
        """It told that it advances, and will again."""
        self._is_armed = True
        self.hear()

    def granted(self, num_tokens: int) -> None:
        """It begins to compute so many tokens."""
        self._num_tokens, self._computing_s = num_tokens, 0.0
        self.hear()

    def computed(self, num_tokens: int, seconds: float) -> None:
        """The first token is here. P says how many tokens it computed, and in how long."""
        self._computing_s, self._is_armed = None, True
        self._patience.computed(num_tokens, seconds)
        self.hear()

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._why = self._why_to_leave()
        if self._why:
            self._scope.reschedule(self._loop.time())
            return
        self._look_later()

    def _why_to_leave(self) -> str:
        if not (self._num_awaited and self._is_armed):
            return ""
        self._silent_s += LOOK_S
        if self._silent_s >= self._patience.silence_s(self._peer.epoch, self._loop.time()):
            return f"got nowhere for {self._silent_s:.1f} s"
        if self._computing_s is None:
            return ""
        self._computing_s += LOOK_S
        limit_s = self._patience.compute_s(self._num_tokens)
        if limit_s is None or self._computing_s < limit_s:
            return ""
        usual_s = self._patience.usual_s(self._num_tokens)
        return (
            f"is slow: {self._num_tokens} tokens, which take {usual_s:.2g} s as a rule, were not "
            f"computed after {self._computing_s:.1f} s"
        )
