"""A gateway's own picture of who serves, kept from the registry's snapshots.

Pure: `merge` says what a snapshot changes. A young incarnation of the registry only adds; once it
is old enough that every living replica has reported to it, it is believed in full.
"""

from __future__ import annotations

from collections.abc import Mapping

from baton.core.ids import Epoch
from baton.core.messages import Membership, ReplicaInfo

Replicas = Mapping[Epoch, ReplicaInfo]


def merge(
    known: Replicas, snapshot: Membership, *, settled_after_s: float
) -> dict[Epoch, ReplicaInfo]:
    """Return the replicas to believe in. `settled_after_s`: two heartbeats, as a rule."""
    reported = {info.epoch: info for info in snapshot.replicas}
    if snapshot.age_s < settled_after_s:
        return {**known, **reported}
    return reported
