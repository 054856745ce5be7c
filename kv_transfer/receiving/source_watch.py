"""Watches for news of what one source should send, and ends the wait when there are none.

    a handoff  asked -> progress, ... -> granted -> progress, pieces, ... -> first token -> pieces
    a pull     asked -> progress, ... -> offered -> pieces, ...
               `-- no news for too long, or too slow once everything is there --> Unavailable

A source that reports no progress is watched from its first token, or its offer, on; the time limit
of the transfer holds in any case. Time is counted in polls, and only while something is awaited
from the source: time in which our own event loop or engine keeps us from listening is not the
peer's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from baton.core.errors import Unavailable
from baton.core.replicas import ReplicaAddress
from baton.kv_transfer.receiving.source_patience import TOO_LATE, MissingKv, SourcePatience

LOOK_S = 0.2


class SourceWatch:
    """Implements `Listener`. Belongs to one event loop and one transfer."""

    def __init__(self, patience: SourcePatience, peer: ReplicaAddress) -> None:
        self._loop = asyncio.get_running_loop()
        self._patience = patience
        self._peer = peer
        self._began_at = self._loop.time()
        self._patience.asked(peer.epoch, self._began_at)
        self._scope = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self._is_armed = False
        """Whether its silence says anything."""
        self._is_coming = False
        """All that was asked for is there to be sent."""
        self._num_awaited = 0
        """Streams of the source that are listened to at this moment."""
        self._silent_s = 0.0
        self._longest_s = 0.0
        """Longest silence so far, in seconds."""
        self._coming_s = 0.0
        """Seconds listened since all was there to be sent."""
        self._num_bytes = self._num_coming_bytes = 0
        """Bytes received in all, and since all was there to be sent."""
        self._due_bytes = 0.0
        """Bytes due since then, summed at each look, as the least rate changes."""
        self._transport = ""
        """Transport by which the last piece came."""
        self._is_by_one = True
        """Whether all pieces came by that transport."""
        self._first_at = self._last_at = self._began_at
        """Times at which pieces were first awaited, and the last one came."""
        self._why = ""
        self._is_late = False
        """Whether it was given up since what it has yet to send is computed sooner."""
        self._left: Callable[[], MissingKv] = MissingKv

    @asynccontextmanager
    async def waits(self) -> AsyncIterator[None]:
        """Raises Unavailable within the context when the source gets nowhere."""
        try:
            async with self._scope:
                self._look_later()
                yield
        except TimeoutError:
            if not self._scope.expired():
                raise
            now = self._loop.time()
            note = self._patience.was_late if self._is_late else self._patience.missed
            note(self._peer.epoch, self._why, self._began_at, now)
            raise Unavailable(f"{self._peer.replica_id} {self._why}") from None
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._patience.num_coming -= self._is_coming
        epoch, now = self._peer.epoch, self._loop.time()
        self._patience.succeeded(epoch, self._longest_s, now)
        if self._is_by_one:
            seconds = self._last_at - self._first_at
            self._patience.came(epoch, self._transport, self._num_bytes, seconds, now)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within it one of the source's streams is awaited."""
        if not self._num_awaited:
            self._silent_s = 0.0
        self._num_awaited += 1
        try:
            yield
        finally:
            self._num_awaited -= 1

    def observe(self, num_bytes: int = 0, transport: str = "") -> None:
        """News have come; of a piece, its bytes and the way they took."""
        self._longest_s = max(self._longest_s, self._silent_s)
        self._silent_s = 0.0
        self._num_coming_bytes += num_bytes if self._is_coming else 0
        if num_bytes:
            self._last_at = self._loop.time()
            self._is_by_one &= not self._num_bytes or transport == self._transport
            self._transport = transport
        self._num_bytes += num_bytes

    def granted(self, *, tells_progress: bool = False) -> None:
        """Its pieces are asked for from now on, and its silence counts if it tells progress."""
        self._first_at = self._loop.time()
        self._is_armed |= tells_progress
        self.observe()

    def progressed(self) -> None:
        """Note that the source has told of progress: from now on its silence counts."""
        self._is_armed = True
        self.observe()

    def may_be_computed(self, left: Callable[[], MissingKv]) -> None:
        """What is asked for is nothing that the source has yet to compute: from now on it is waited
        for in silence no longer than `left` would take here."""
        self._left = left

    def is_coming(self, left: Callable[[], MissingKv] = MissingKv) -> None:
        """All that was asked for is there to be sent, as its first token or its offer says."""
        self._is_coming = True
        self._left = left
        self._patience.num_coming += 1
        self.progressed()

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        if self._num_awaited and self._is_armed:
            self._silent_s += LOOK_S
            if self._is_coming:
                least = self._patience.least_bytes_per_s(self._peer.epoch, self._transport)
                self._coming_s += LOOK_S
                self._due_bytes += LOOK_S * least
            if why := self._why_too_late():
                self._why = why
                self._scope.reschedule(self._loop.time())
                return
        self._look_later()

    def _why_too_late(self) -> str:
        epoch = self._peer.epoch
        allowed_s = self._patience.silence_s(epoch, self._loop.time())
        if self._silent_s >= allowed_s:
            return f"got nowhere for {self._silent_s:.1f} s"
        if why := self._why_not_worth_it():
            self._is_late = True
            return why
        if self._coming_s < allowed_s or self._num_coming_bytes >= self._due_bytes:
            return ""
        self._patience.was_slow(epoch, self._transport, self._loop.time())
        rate = self._num_coming_bytes / self._coming_s / 2**20
        due = self._due_bytes / self._coming_s / 2**20
        return f"sent {rate:.3f} MiB/s for {self._coming_s:.1f} s: {due:.3f} are due"

    def _why_not_worth_it(self) -> str:
        """Why what is missing is better computed; empty if it is not."""
        epoch, now = self._peer.epoch, self._loop.time()
        if max(self._silent_s, self._coming_s) < self._patience.late_s(epoch, now):
            return ""
        left = self._left()
        is_worth = partial(self._patience.is_worth_waiting, epoch, left=left, now=now)
        here = f"what is missing is computed in {left.here_s:.1f} s"
        if not is_worth(self._silent_s):
            return f"got nowhere for {self._silent_s:.1f} s: {here}"
        if is_worth(self._coming_s):
            return ""
        rate = self._num_coming_bytes / self._coming_s
        if left.num_bytes <= TOO_LATE * left.here_s * rate:
            return ""
        return f"sent {rate / 2**20:.3f} MiB/s for {self._coming_s:.1f} s: {here}"
