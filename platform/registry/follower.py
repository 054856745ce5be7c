"""A gateway's copy of the registry's state, built from updates. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from baton.core.ids import Epoch, ReplicaId
from baton.core.kv_layout import KvLayout
from baton.core.replicas import Membership, MembershipUpdate, ReplicaInfo, StartingReplica


class Follower:
    def __init__(self) -> None:
        self.incarnation: Epoch | None = None
        self.version = -1
        self._replica_by_epoch: dict[Epoch, ReplicaInfo] = {}
        self._starting_by_id: dict[ReplicaId, StartingReplica] = {}

    @property
    def layouts(self) -> frozenset[KvLayout]:
        """KV layouts that are known here, so that updates need not bring them again."""
        return frozenset(info.layout for info in self._replica_by_epoch.values())

    def take(self, update: MembershipUpdate) -> Membership | None:
        """Apply an update and return the state; None if the update is outdated, or continues an
        unknown version."""
        is_same = update.incarnation == self.incarnation
        if is_same and update.version < self.version:
            return None
        if update.since is None:
            self._replica_by_epoch, self._starting_by_id = {}, {}
        elif not is_same or update.since > self.version:
            return None
        self.incarnation, self.version = update.incarnation, update.version
        for epoch in update.gone:
            self._replica_by_epoch.pop(epoch, None)
        for replica_id in update.no_longer_starting:
            self._starting_by_id.pop(replica_id, None)
        self._replica_by_epoch |= {info.epoch: info for info in update.replicas}
        self._starting_by_id |= {one.replica_id: one for one in update.starting}
        return self._membership(update)

    def _membership(self, update: MembershipUpdate) -> Membership:
        replicas: Mapping[Epoch, ReplicaInfo] = self._replica_by_epoch
        return Membership(
            incarnation=update.incarnation,
            version=update.version,
            age_s=update.age_s,
            replicas=tuple(replicas.values()),
            starting=tuple(self._starting_by_id.values()),
            left=update.left,
            intervals=update.intervals,
        )
