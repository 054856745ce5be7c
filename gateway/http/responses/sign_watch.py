"""Who is alive, told by signs that change: no two hosts need agree about the time."""

from __future__ import annotations

from baton.core.clock import Clock
from baton.gateway.storage.folder import Place

STILL_S = 30.0
"""A sign that has not changed for so long is that of a process that was killed."""
MAX_WATCHED = 16 * 1024


class SignWatch:
    """Since when signs have not changed, on a clock of this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[Place, tuple[bytes | None, float]] = {}
        """The sign that was seen last, and when it was first; who was asked for last is last."""

    def is_still(self, place: Place, sign: bytes | None) -> bool:
        """Whether this sign has been there for STILL_S."""
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
        """Nothing that was seen counts any more: signs could not be renewed meanwhile."""
        self._seen.clear()
