"""A gateway's own picture of which replicas serve, kept from the registry's snapshots.

Pure: `merge` says what a snapshot changes. A replica leaves when it has said farewell, or when it
is another incarnation by now. Otherwise a young incarnation of the registry only adds replicas.
Once it is old enough that every living replica has reported to it, those leave of which neither it
nor this gateway hears: a registry that stalls, or that heartbeats do not reach, removes no replica
whose stream lives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from baton.core.ids import Epoch
from baton.core.replicas import Membership, ReplicaInfo

Replicas = Mapping[Epoch, ReplicaInfo]


def merge(
    known: Replicas,
    snapshot: Membership,
    *,
    settled_after_s: float,
    alive: Collection[Epoch] = (),
) -> dict[Epoch, ReplicaInfo]:
    """Return the replicas to believe in. `alive`: those that this gateway hears itself."""
    reported = {info.epoch: info for info in snapshot.replicas}
    ids = {info.replica_id for info in snapshot.replicas}
    stays = known.keys() if snapshot.age_s < settled_after_s else set(alive)
    unheard = {
        epoch: info
        for epoch, info in known.items()
        if epoch in stays and epoch not in snapshot.left and info.replica_id not in ids
    }
    return unheard | reported
