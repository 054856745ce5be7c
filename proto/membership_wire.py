"""What replicas tell the registry, and it gateways, as protobuf (proto/replica.proto).

A replica names its layout by a hash; the layout itself comes once, with the first who has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from baton.core.ids import Epoch, ReplicaId
from baton.core.kv_layout import KvLayout
from baton.core.replicas import (
    MembershipUpdate,
    ReplicaInfo,
    ReportIntervals,
    Role,
    StartingReplica,
)
from baton.proto import replica_pb2 as pb
from baton.proto.kv_wire import layout_from_proto, layout_to_proto

_ID_BYTES = 12
_SAME = (
    *("replica_id", "epoch", "role", "address", "num_blocks", "max_model_len", "max_open"),
    *("max_queued_tokens", "max_chunk", "model", "is_ready", "is_flipped", "is_flipping"),
)
_SAME_OF_STARTING = ("stage", "failure", "is_final", "stage_s", "is_flipped")


@lru_cache(maxsize=256)
def layout_id(layout: KvLayout) -> bytes:
    """Equal for equal layouts, in every process."""
    return blake2b(
        layout_to_proto(layout).SerializeToString(deterministic=True), digest_size=_ID_BYTES
    ).digest()


def update_to_proto(update: MembershipUpdate) -> pb.MembershipUpdate:
    return pb.MembershipUpdate(
        incarnation=update.incarnation,
        version=update.version,
        age_s=update.age_s,
        beat_s=update.intervals.beat_s,
        whole_s=update.intervals.whole_s,
        since=update.since,
        layouts=map(layout_to_proto, update.layouts),
        replicas=map(_replica_to_proto, update.replicas),
        gone=update.gone,
        starting=map(starting_to_proto, update.starting),
        no_longer_starting=update.no_longer_starting,
        left=update.left,
        address=update.address,
    )


def update_from_proto(
    message: pb.MembershipUpdate, known: Mapping[bytes, KvLayout]
) -> MembershipUpdate:
    """`known`: layouts that came before, by `layout_id`. Raises KeyError for a replica whose layout
    is not known, and ValueError for a role or layout that this version does not know."""
    layouts = tuple(map(layout_from_proto, message.layouts))
    by_id = {**known, **{layout_id(layout): layout for layout in layouts}}
    return MembershipUpdate(
        incarnation=Epoch(message.incarnation),
        version=message.version,
        age_s=message.age_s,
        intervals=ReportIntervals(beat_s=message.beat_s, whole_s=message.whole_s),
        since=message.since if message.HasField("since") else None,
        layouts=layouts,
        replicas=tuple(_replica_from_proto(one, by_id) for one in message.replicas),
        gone=tuple(map(Epoch, message.gone)),
        starting=tuple(map(starting_from_proto, message.starting)),
        no_longer_starting=tuple(map(ReplicaId, message.no_longer_starting)),
        left=tuple(map(Epoch, message.left)),
        address=message.address,
    )


def heartbeat_to_proto(info: ReplicaInfo, telling: int) -> pb.HeartbeatRequest:
    return pb.HeartbeatRequest(
        replica=_replica_to_proto(info), layout=layout_to_proto(info.layout), telling=telling
    )


def heartbeat_from_proto(message: pb.HeartbeatRequest) -> ReplicaInfo:
    """Raises ValueError for a role or layout that this version does not know."""
    layout = layout_from_proto(message.layout)
    return _replica_from_proto(message.replica, {message.replica.layout_id: layout})


def _replica_to_proto(info: ReplicaInfo) -> pb.RegisteredReplica:
    same = {name: getattr(info, name) for name in _SAME}
    return pb.RegisteredReplica(layout_id=layout_id(info.layout), **same)


def _replica_from_proto(
    message: pb.RegisteredReplica, layouts: Mapping[bytes, KvLayout]
) -> ReplicaInfo:
    same: dict[str, Any] = {name: getattr(message, name) for name in _SAME}
    same["role"] = Role(message.role)
    return ReplicaInfo(layout=layouts[message.layout_id], **same)


def starting_to_proto(starting: StartingReplica) -> pb.StartingReplica:
    same = {name: getattr(starting, name) for name in _SAME_OF_STARTING}
    return pb.StartingReplica(
        replica_id=starting.replica_id, role=starting.role, fraction=starting.fraction, **same
    )


def starting_from_proto(message: pb.StartingReplica) -> StartingReplica:
    """Raises ValueError for a role that this version does not know."""
    same: dict[str, Any] = {name: getattr(message, name) for name in _SAME_OF_STARTING}
    return StartingReplica(
        replica_id=ReplicaId(message.replica_id),
        role=Role(message.role),
        fraction=message.fraction if message.HasField("fraction") else None,
        **same,
    )
