"""A gateway's own picture of who serves, kept from the registry's snapshots.

Pure: `merge` says what a snapshot changes. Who has said farewell leaves, and so does who is another
incarnation by now. A young incarnation of the registry else only adds; once it is old enough that
every living replica has reported to it, those leave of which neither it nor this gateway hears: a
registry that stalls, or that heartbeats do not reach, takes nobody away whose stream lives.
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
