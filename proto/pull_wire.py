"""How a request for KV that a peer has cached, and the answer, are protobuf (replica.proto)."""

from __future__ import annotations

from baton.core.ids import Epoch, RequestId, TransferId
from baton.core.messages import (
    PullOffered,
    PullRequest,
)
from baton.proto import replica_pb2 as pb
from baton.proto.kv_wire import head_runs_from_proto, layout_from_proto, layout_to_proto


def pull_to_proto(request: PullRequest, sender_epoch: Epoch) -> pb.PullRequest:
    return pb.PullRequest(
        transfer_id=request.transfer_id,
        sender_epoch=sender_epoch,
        receiver_epoch=request.receiver_epoch,
        layout=layout_to_proto(request.layout),
        tokens=request.tokens,
        salt=request.salt,
        num_held=request.num_held,
        request_id=request.request_id or "",
        attempt=request.attempt,
        time_left_ms=request.time_left_ms,
        tenant=request.tenant,
    )


def pull_from_proto(message: pb.PullRequest) -> PullRequest:
    return PullRequest(
        transfer_id=TransferId(message.transfer_id),
        receiver_epoch=Epoch(message.receiver_epoch),
        layout=layout_from_proto(message.layout),
        tokens=tuple(message.tokens),
        salt=message.salt,
        num_held=message.num_held,
        request_id=RequestId(message.request_id) if message.request_id else None,
        attempt=message.attempt,
        time_left_ms=message.time_left_ms,
        tenant=message.tenant,
    )


def offered_to_proto(offered: PullOffered) -> pb.PullOffered:
    return pb.PullOffered(
        transfer_id=offered.transfer_id,
        sender_epoch=offered.sender_epoch,
        layout=layout_to_proto(offered.layout),
        num_tokens=offered.num_tokens,
        head_stops=[run.stop for run in offered.head_runs],
    )


def offered_from_proto(message: pb.PullOffered) -> PullOffered:
    layout = layout_from_proto(message.layout)
    return PullOffered(
        transfer_id=TransferId(message.transfer_id),
        sender_epoch=Epoch(message.sender_epoch),
        layout=layout,
        num_tokens=message.num_tokens,
        head_runs=head_runs_from_proto(layout, message.head_stops),
    )
