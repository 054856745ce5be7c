"""Pools of changing size: replicas start, serve, drain, end or flip.

    start --cold_start_s--> serves --drain--> serves those it has --> gone
                                              --flip_s--> serves in the other role

What a replica costs begins when it starts and ends when it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

from baton.core.replicas import Role
from baton.platform.planner.observation import PoolCount
from baton.platform.planner.plan import Decision
from baton.platform.simulator.fleet.decode import DecodeReplica
from baton.platform.simulator.fleet.event_queue import EventQueue
from baton.platform.simulator.fleet.prefill import PrefillReplica

LOOK_S = 1.0
"""Seconds between checks of draining replicas."""

Replica = PrefillReplica | DecodeReplica


@dataclass(slots=True, eq=False)
class _Member:
    role: Role
    since_s: float
    replica: Replica | None = None
    """None while it starts."""
    is_draining: bool = False
    is_dropped: bool = False
    """Whether it was removed before it had started."""
    becomes: Role | None = None
    idle_s: float = inf
    """Time since which it has nothing to do."""


class ElasticPools:
    def __init__(
        self,
        add: Callable[[Role], Replica],
        forget: Callable[[Replica], None],
        event_queue: EventQueue,
        *,
        cold_start_s: float,
        flip_s: float,
    ) -> None:
        self._add = add
        self._forget = forget
        self._event_queue = event_queue
        self._cold_start_s = cold_start_s
        self._flip_s = flip_s
        self._members: list[_Member] = []
        self._spent_s = dict.fromkeys(Role, 0.0)
        self._is_looking = False
        self.num_flipped = 0

    def adopt(self, role: Role, replica: Replica) -> None:
        """One that is there from the beginning."""
        self._members.append(_Member(role, self._event_queue.now, replica))

    def count(self, role: Role) -> PoolCount:
        """Replicas of a role by state; those that take this role next are starting in it."""
        of_role = [one for one in self._members if one.role is role]
        flipping = sum(one.becomes is role for one in self._members)
        return PoolCount(
            serving=sum(one.replica is not None and not one.is_draining for one in of_role),
            starting=sum(one.replica is None for one in of_role) + flipping,
            draining=sum(one.is_draining for one in of_role),
        )

    def replica_s(self, role: Role) -> float:
        """Replica-seconds of the role until now."""
        now = self._event_queue.now
        return self._spent_s[role] + sum(
            now - one.since_s for one in self._members if one.role is role
        )

    def follow(self, decision: Decision) -> None:
        giver = Role.PREFILL if decision.flips > 0 else Role.DECODE
        taker = Role.DECODE if decision.flips > 0 else Role.PREFILL
        for member in self._to_spare(giver, abs(decision.flips)):
            member.becomes = taker
            self.num_flipped += 1
            self._drain(member)
        for role in Role:
            self._resize(role, decision.count(role))

    def _resize(self, role: Role, num_wanted: int) -> None:
        num_kept = self.count(role).num_kept
        for _ in range(num_wanted - num_kept):
            self._start(role, after_s=self._cold_start_s)
        starting = [one for one in self._members if one.role is role and one.replica is None]
        for member in starting[: max(num_kept - num_wanted, 0)]:
            member.is_dropped = True
            self._end(member)
            num_kept -= 1
        for member in self._to_spare(role, num_kept - num_wanted):
            self._drain(member)

    def _to_spare(self, role: Role, num: int) -> list[_Member]:
        """The youngest that serve."""
        serving = [
            one
            for one in self._members
            if one.role is role and one.replica is not None and not one.is_draining
        ]
        return serving[-num:] if num > 0 else []

    def _start(self, role: Role, *, after_s: float) -> None:
        member = _Member(role, self._event_queue.now)
        self._members.append(member)

        def is_there() -> None:
            if not member.is_dropped:
                member.replica = self._add(role)

        self._event_queue.after(after_s, is_there)

    def _drain(self, member: _Member) -> None:
        assert member.replica is not None
        member.is_draining = True
        member.replica.drain()
        self._look_later()

    def _look_later(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._event_queue.after(LOOK_S, self._look)

    def _look(self) -> None:
        """Remove drained replicas after a while without work, since messages may be in flight."""
        self._is_looking = False
        now = self._event_queue.now
        for member in list(self._draining()):
            assert member.replica is not None
            member.idle_s = min(member.idle_s, now) if member.replica.is_idle else inf
            if now - member.idle_s >= LOOK_S:
                self._forget(member.replica)
                self._end(member)
                if member.becomes is not None:
                    self._start(member.becomes, after_s=self._flip_s)
        if any(self._draining()):
            self._look_later()

    def _draining(self) -> Iterator[_Member]:
        return (one for one in self._members if one.is_draining)

    def _end(self, member: _Member) -> None:
        self._members.remove(member)
        self._spent_s[member.role] += self._event_queue.now - member.since_s
