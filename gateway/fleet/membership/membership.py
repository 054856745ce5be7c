"""A gateway's own list of serving replicas, updated from the registry's snapshots.

Pure: `merge` returns the new list. A replica leaves when it has deregistered, or has restarted as
another incarnation. Apart from that, a young registry only adds replicas. Once the registry is old
enough that every living replica has reported to it, replicas leave that report neither to the
registry nor to this gateway: a registry that stalls, or that heartbeats do not reach, never removes
a replica whose stream lives.
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
    """Return the new list. `alive`: replicas that report to this gateway itself."""
    reported = {info.epoch: info for info in snapshot.replicas}
    ids = {info.replica_id for info in snapshot.replicas}
    stays = known.keys() if snapshot.age_s < settled_after_s else set(alive)
    unheard = {
        epoch: info
        for epoch, info in known.items()
        if epoch in stays and epoch not in snapshot.left and info.replica_id not in ids
    }
    return unheard | reported
