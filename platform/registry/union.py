"""Merges the states of several registries. Pure.

    a replica is there       if any registry that answers says so
    a replica is gone        when all that answer say so; or one says that it has said farewell
    a registry answers       until it has not done so for HEARD_S
    one began anew           those its last incarnation knew, if that answered until then, count as
                             said by it until all have had time to report to it; one that begins
                             again and again gets that once

Each replica reports to each registry, and no registry goes by another: so one that some replicas
cannot reach takes nobody away, and one that comes back with an old list brings nobody back for
longer than it takes to find them silent, by its own monotonic clock.

Where they differ about one replica it counts as ready: one that drains says so itself, on its
streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from baton.core.clock import Clock
from baton.core.ids import Epoch, ReplicaId, new_epoch
from baton.core.replicas import Membership, ReplicaInfo, StartingReplica

HEARD_S = 15.0
"""A registry answers each 5 s where nothing is new; one that is asked through Serve, later."""


@dataclass(frozen=True, slots=True)
class _RegistryState:
    """What one registry said last."""

    known: Membership
    at_s: float
    kept: tuple[ReplicaInfo, ...] = ()
    """Replicas that its last incarnation knew."""
    kept_until_s: float = float("-inf")

    def kept_at(self, now: float) -> tuple[ReplicaInfo, ...]:
        return self.kept if now < self.kept_until_s else ()


class MembershipUnion:
    """The union has an incarnation of its own, and versions of it: they identify its state."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: dict[int, _RegistryState] = {}
        self._incarnation = new_epoch()
        self._told: Membership | None = None

    def take(self, index: int, known: Membership) -> None:
        """Hear what one of the registries says."""
        now, before = self._clock(), self._heard.get(index)
        self._heard[index] = _RegistryState(known, now)
        if before is None:
            return
        kept, kept_until_s = before.kept_at(now), before.kept_until_s
        is_anew = known.incarnation != before.known.incarnation
        was_heard = now - before.at_s <= HEARD_S  # else what it knew has not counted for a while
        if is_anew and was_heard and now >= kept_until_s:
            slowest_s = max(
                one.intervals.settled_after_s for one in (before.known, known)
            )  # who lives comes to the new one as seldom as the old one said
            kept, kept_until_s = before.known.replicas, now + slowest_s - known.age_s
        self._heard[index] = _RegistryState(known, now, kept, kept_until_s)

    def heard(self) -> frozenset[int]:
        """The registries that answer."""
        now = self._clock()
        return frozenset(i for i, one in self._heard.items() if now - one.at_s <= HEARD_S)

    def num_replicas(self, index: int) -> int | None:
        """Replicas that one knows by its own last word; None if it never said any."""
        one = self._heard.get(index)
        return None if one is None else len(one.known.replicas)

    def changes_in_s(self) -> float:
        """Seconds until it may be another although nobody says anything."""
        now = self._clock()
        moments = [one.at_s + HEARD_S for one in self._heard.values()]
        moments += [one.kept_until_s for one in self._heard.values() if one.kept_at(now)]
        return max(
            0.01, min((at_s for at_s in moments if at_s >= now), default=now + HEARD_S) - now
        )

    def membership(self) -> Membership | None:
        """What they say together now; None while none answers. Its version is another once who
        serves, starts or has left is another."""
        now = self._clock()
        said = [one for one in self._heard.values() if now - one.at_s <= HEARD_S]
        if not said:
            return None
        left = tuple(dict.fromkeys(epoch for one in said for epoch in one.known.left))
        replicas = tuple(_replicas(said, frozenset(left), now))
        ids = {info.replica_id for info in replicas}
        found = Membership(
            incarnation=self._incarnation,
            version=0,
            age_s=max(one.known.age_s + now - one.at_s for one in said),
            replicas=replicas,
            starting=tuple(it for it in _starting(said) if it.replica_id not in ids),
            left=left,
            intervals=max(
                (one.known.intervals for one in said), key=lambda intervals: intervals.beat_s
            ),
        )
        told = self._told
        version = 0 if told is None else told.version + _is_news(told, found)
        self._told = replace(found, version=version)
        return self._told


def _replicas(
    said: list[_RegistryState], left: frozenset[Epoch], now: float
) -> Iterator[ReplicaInfo]:
    found: dict[Epoch, ReplicaInfo] = {}
    for one in said:
        for info in one.known.replicas:
            known = found.get(info.epoch)
            if known is None or (info.is_ready and not known.is_ready):
                found[info.epoch] = info
    ids = {info.replica_id for info in found.values()}
    for one in said:
        for info in one.kept_at(now):
            if info.replica_id not in ids:  # else it is another incarnation by now
                found.setdefault(info.epoch, info)
    return (info for epoch, info in found.items() if epoch not in left)


def _starting(said: list[_RegistryState]) -> Iterator[StartingReplica]:
    """What each says that does not serve yet; one registry may get a failure before others."""
    found: dict[ReplicaId, StartingReplica] = {}
    for one in said:
        for starting in one.known.starting:
            known = found.get(starting.replica_id)
            if known is None or (starting.failure and not known.failure):
                found[starting.replica_id] = starting
    return iter(found.values())


def _is_news(before: Membership, after: Membership) -> bool:
    if set(before.left) != set(after.left) or before.intervals != after.intervals:
        return True
    if _stages(before) != _stages(after):
        return True
    known = {info.epoch: info for info in before.replicas}
    return len(known) != len(after.replicas) or any(
        (same := known.get(info.epoch)) is not info and same != info for info in after.replicas
    )


def _stages(known: Membership) -> dict[ReplicaId, tuple[str, str]]:
    return {one.replica_id: (one.stage, one.failure) for one in known.starting}
