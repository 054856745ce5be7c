"""Liveness by signs that change, so that hosts' clocks need not agree."""

from __future__ import annotations

from baton.core.clock import Clock
from baton.gateway.storage.folder import Place

STILL_S = 30.0
"""A process whose sign has not changed for this many seconds counts as killed."""
MAX_WATCHED = 16 * 1024


class SignWatch:
    """How long each sign has been unchanged, by this process's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[Place, tuple[bytes | None, float]] = {}
        """By place: its last sign, and when that was first seen; in order of the last query."""

    def is_still(self, place: Place, sign: bytes | None) -> bool:
        """Whether this sign has been unchanged for STILL_S."""
        now = self._clock()
        seen = self._seen.pop(place, None)
        if seen is None or seen[0] != sign:
            seen = (sign, now)
        self._seen[place] = seen
        if len(self._seen) > MAX_WATCHED:
            del self._seen[next(iter(self._seen))]
        return now - seen[1] >= STILL_S

    def forget(self, place: Place) -> None:
        self._seen.pop(place, None)

    def begin_again(self) -> None:
        """Forget all observations, since signs could not be renewed meanwhile."""
        self._seen.clear()
