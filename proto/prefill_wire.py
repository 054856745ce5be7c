"""How what decode and prefill replicas say of a prompt is protobuf (replica.proto)."""

from __future__ import annotations

from baton.core.ids import Epoch, RequestId, TransferId
from baton.core.messages import (
    PrefillDone,
    PrefillGranted,
    PrefillRequest,
)
from baton.core.tracing import TraceContext
from baton.proto import replica_pb2 as pb
from baton.proto.kv_wire import head_runs_from_proto, layout_from_proto, layout_to_proto
from baton.proto.message_parts_wire import (
    address_from_proto,
    address_to_proto,
    cache_point_from_proto,
    cache_point_to_proto,
    logprob_from_proto,
    logprob_to_proto,
)
from baton.proto.sampling_wire import sampling_from_proto, sampling_to_proto


def prefill_to_proto(request: PrefillRequest, sender_epoch: Epoch) -> pb.PrefillRequest:
    return pb.PrefillRequest(
        request_id=request.request_id,
        transfer_id=request.transfer_id,
        receiver_epoch=request.receiver_epoch,
        sender_epoch=sender_epoch,
        layout=layout_to_proto(request.layout),
        prompt=request.prompt,
        output=request.output,
        sampling=sampling_to_proto(request.sampling),
        salt=request.salt,
        adapter=request.adapter,
        priority=request.priority,
        tenant=request.tenant,
        cache_points=map(cache_point_to_proto, request.cache_points),
        source=None if request.source is None else address_to_proto(request.source),
        gateway_epoch=request.gateway_epoch or "",
        traceparent=request.trace.traceparent,
        tracestate=request.trace.tracestate,
        wants_progress=request.wants_progress,
        joins_progress=request.joins_progress,
        time_left_ms=request.time_left_ms,
    )


def prefill_from_proto(message: pb.PrefillRequest) -> PrefillRequest:
    return PrefillRequest(
        request_id=RequestId(message.request_id),
        transfer_id=TransferId(message.transfer_id),
        receiver_epoch=Epoch(message.receiver_epoch),
        layout=layout_from_proto(message.layout),
        prompt=tuple(message.prompt),
        output=tuple(message.output),
        sampling=sampling_from_proto(message.sampling),
        salt=message.salt,
        adapter=message.adapter,
        priority=message.priority,
        tenant=message.tenant,
        cache_points=tuple(map(cache_point_from_proto, message.cache_points)),
        source=address_from_proto(message.source) if message.HasField("source") else None,
        gateway_epoch=Epoch(message.gateway_epoch) if message.gateway_epoch else None,
        trace=TraceContext(message.traceparent, message.tracestate),
        wants_progress=message.wants_progress,
        joins_progress=message.joins_progress,
        time_left_ms=message.time_left_ms,
    )


def granted_to_proto(granted: PrefillGranted) -> pb.PrefillGranted:
    return pb.PrefillGranted(
        transfer_id=granted.transfer_id,
        sender_epoch=granted.sender_epoch,
        layout=layout_to_proto(granted.layout),
        num_tokens=granted.num_tokens,
        num_cached=granted.num_cached,
        head_stops=[run.stop for run in granted.head_runs],
        tells_progress=granted.tells_progress,
    )


def granted_from_proto(message: pb.PrefillGranted) -> PrefillGranted:
    layout = layout_from_proto(message.layout)
    return PrefillGranted(
        transfer_id=TransferId(message.transfer_id),
        sender_epoch=Epoch(message.sender_epoch),
        layout=layout,
        num_tokens=message.num_tokens,
        num_cached=message.num_cached,
        head_runs=head_runs_from_proto(layout, message.head_stops),
        tells_progress=message.tells_progress,
    )


def done_to_proto(done: PrefillDone) -> pb.PrefillDone:
    return pb.PrefillDone(
        transfer_id=done.transfer_id,
        token=done.token,
        logprob=None if done.logprob is None else logprob_to_proto(done.logprob),
        queue_ms=done.queue_ms,
        prefill_ms=done.prefill_ms,
        num_computed=done.num_computed,
    )


def done_from_proto(message: pb.PrefillDone) -> PrefillDone:
    return PrefillDone(
        transfer_id=TransferId(message.transfer_id),
        token=message.token,
        logprob=logprob_from_proto(message.logprob) if message.HasField("logprob") else None,
        queue_ms=message.queue_ms,
        prefill_ms=message.prefill_ms,
        num_computed=message.num_computed,
    )
