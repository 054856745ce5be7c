"""The replicas that take another role at the moment, and what they make of the pools' sizes."""

from __future__ import annotations

from baton.core.clock import Clock
from baton.core.ids import ReplicaId
from baton.core.replicas import Membership, ReplicaInfo, Role, StartingReplica


class FlipsUnderWay:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ordered: dict[ReplicaId, tuple[Role, float]] = {}
        """Replicas that were ordered to flip: the new role, and the time limit."""

    def begin(self, replica_id: ReplicaId, role: Role, flip_s: float) -> None:
        """It was ordered to take this role, which may take so many seconds."""
        self._ordered[replica_id] = (role, self._clock() + flip_s)

    def roles(self, known: Membership) -> dict[ReplicaId, Role]:
        """Replicas that are to take a role, by the orders given here, and by their own reports: an
        earlier planner, or a person, may have ordered it."""
        role_by_id = {one.replica_id: one.role for one in known.starting}
        role_by_id |= {info.replica_id: info.role for info in known.replicas}
        now = self._clock()
        for replica_id, (role, until_s) in list(self._ordered.items()):
            if role_by_id.get(replica_id, role) is role or now > until_s:
                del self._ordered[replica_id]
        flipping = {
            info.replica_id: Role.PREFILL if info.role is Role.DECODE else Role.DECODE
            for info in known.replicas
            if info.is_flipping
        }
        return {replica_id: role for replica_id, (role, _) in self._ordered.items()} | flipping

    def num_moved(self, known: Membership) -> int:
        """Prefill replicas that decode by now, or will, less those that went the other way."""
        all_known: list[StartingReplica | ReplicaInfo] = [*known.starting, *known.replicas]
        there = {one.replica_id: one for one in all_known}
        to = [one.role for one in there.values() if one.is_flipped]
        to += self.roles(known).values()
        return to.count(Role.DECODE) - to.count(Role.PREFILL)
