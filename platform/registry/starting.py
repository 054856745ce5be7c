"""Replicas that do not serve yet, as they say themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from baton.core.clock import Clock
from baton.core.ids import ReplicaId
from baton.core.replicas import StartingReplica
from baton.platform.registry.journal import Journal

REPORT_S = 0.5
"""How often each says how far it is, where few start."""
REPORTS_PER_S = 40.0
"""Most reports a second of all starting replicas together: each is a call through Serve."""
TTL_S = 10.0
"""They are forgiven a longer silence than those that serve: imports hold up everything else."""


@dataclass(frozen=True, slots=True)
class _StageReport:
    starting: StartingReplica
    until_s: float
    stage_began_at: float


class StartingReplicas:
    """`bump` gives what is new the next version."""

    def __init__(self, clock: Clock, bump: Callable[[], int], max_gone: int) -> None:
        self._clock = clock
        self._bump = bump
        self._heard: dict[ReplicaId, _StageReport] = {}
        self.journal = Journal[ReplicaId, ReplicaId](max_gone)

    def __len__(self) -> int:
        return len(self._heard)

    def update(self, starting: StartingReplica) -> float:
        """A new stage is news; how much of it is done is for callers that ask anyway. Returns
        the seconds after which it is to say more of the same stage."""
        now, key = self._clock(), starting.replica_id
        before = self._heard.get(key)
        is_same = before is not None and (
            (before.starting.stage, before.starting.failure) == (starting.stage, starting.failure)
        )
        began_at = before.stage_began_at if before is not None and is_same else now
        rest_s = max(REPORT_S, (len(self._heard) + (before is None)) / REPORTS_PER_S)
        ttl_s = TTL_S if starting.failure else max(TTL_S, 3 * rest_s)
        self._heard[key] = _StageReport(starting, now + ttl_s, began_at)
        if not is_same:
            self.journal.put(key, key, self._bump())
        return rest_s

    def serves(self, replica_id: ReplicaId) -> None:
        """It starts no more. Whoever calls has news of it."""
        if self._heard.pop(replica_id, None) is not None:
            self.journal.pop(replica_id, self._bump())

    def drop_silent(self) -> None:
        now = self._clock()
        for replica_id in [key for key, heard in self._heard.items() if now > heard.until_s]:
            self.serves(replica_id)

    def now(self) -> Iterator[StartingReplica]:
        yield from map(self._now, self._heard)

    def changed(self, since: int) -> Iterator[StartingReplica]:
        yield from map(self._now, self.journal.changed(since))

    def _now(self, replica_id: ReplicaId) -> StartingReplica:
        heard = self._heard[replica_id]
        return replace(heard.starting, stage_s=self._clock() - heard.stage_began_at)
