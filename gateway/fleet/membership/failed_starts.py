"""Counts consecutive failed starts of decode replicas.

While replicas start for waiting requests, each failure is followed by another start. After a few,
requests are refused with the failure instead of waiting; after a while requests may wait again, and
one more failure is enough. Starts that were already under way beside the last failure are awaited.

    0 --fails--> 1 --> 2 --> MANY: refused --AGAIN_S--> waits again --fails--> refused ...
    any --a decode replica takes requests--> 0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from baton.core.clock import Clock
from baton.core.ids import ReplicaId
from baton.core.replicas import Role, StartingReplica

MANY = 3
AGAIN_S = 30.0
"""Seconds after which requests may wait again: only waiting requests cause a further start."""


class FailedStarts:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: StartingReplica | None = None
        self._last_at_s = 0.0
        self._beside: frozenset[ReplicaId] = frozenset()
        """Replicas that were starting when the last one failed."""
        self.num = 0

    def observe(self, failed: Sequence[StartingReplica], before: Sequence[StartingReplica]) -> None:
        """Take in new failed starts; `before`: the replicas that were starting until then."""
        for one in failed:
            if one.role is Role.DECODE:
                self.num += 1
                self._last, self._last_at_s = one, self._clock()
                self._beside = frozenset(_alive(before)) - {one.replica_id}

    def clear(self) -> None:
        """A decode replica takes requests."""
        self.num, self._last = 0, None

    def why_refused(self, starting: Sequence[StartingReplica]) -> str:
        """Why requests are refused, in words safe for clients: without the error itself, which may
        name files. Empty while requests may wait."""
        last = self._last
        if not self._beside.isdisjoint(_alive(starting)):
            return ""
        if last is None or not (last.is_final or self.num >= MANY):
            return ""
        if self._clock() - self._last_at_s >= AGAIN_S:
            return ""
        times = "" if self.num == 1 else f" ({self.num} in a row)"
        return (
            f"no decode replica can be started: {last.replica_id} failed while "
            f"{last.stage}{times}; the log says why"
        )


def _alive(starting: Sequence[StartingReplica]) -> Iterator[ReplicaId]:
    """Decode replicas that are on their way."""
    return (one.replica_id for one in starting if one.role is Role.DECODE and not one.failure)
