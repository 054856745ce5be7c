"""How requests to decode, and streams that are parked, are protobuf (replica.proto)."""

from __future__ import annotations

from baton.core.ids import RequestId
from baton.core.messages import (
    GenerateRequest,
    ParkedStream,
)
from baton.core.parking import Parking, TakeStream
from baton.core.tracing import TraceContext
from baton.proto import replica_pb2 as pb
from baton.proto.message_parts_wire import (
    FINISH_FROM_PROTO,
    FINISH_TO_PROTO,
    POOLING_TO_PROTO,
    address_from_proto,
    address_to_proto,
    cache_point_from_proto,
    cache_point_to_proto,
    logprob_from_proto,
    logprob_to_proto,
    pooling_from_proto,
)
from baton.proto.sampling_wire import sampling_from_proto, sampling_to_proto
from baton.proto.token_update_wire import receipt_from_proto, receipt_to_proto


def generate_to_proto(request: GenerateRequest) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id=request.request_id,
        attempt=request.attempt,
        prompt=request.prompt,
        output=request.output,
        sampling=sampling_to_proto(request.sampling),
        salt=request.salt,
        adapter=request.adapter,
        prefill=[address_to_proto(address) for address in request.prefill],
        priority=request.priority,
        pooling=POOLING_TO_PROTO[request.pooling],
        tenant=request.tenant,
        cache_points=map(cache_point_to_proto, request.cache_points),
        source=None if request.source is None else address_to_proto(request.source),
        is_moving=request.is_moving,
        traceparent=request.trace.traceparent,
        tracestate=request.trace.tracestate,
        parking=_parking_to_proto(request.parking),
        time_left_ms=request.time_left_ms,
    )


def generate_from_proto(message: pb.GenerateRequest) -> GenerateRequest:
    return GenerateRequest(
        request_id=RequestId(message.request_id),
        attempt=message.attempt,
        prompt=tuple(message.prompt),
        output=tuple(message.output),
        sampling=sampling_from_proto(message.sampling),
        salt=message.salt,
        adapter=message.adapter,
        prefill=tuple(address_from_proto(address) for address in message.prefill),
        priority=message.priority,
        pooling=pooling_from_proto(message.pooling),
        tenant=message.tenant,
        cache_points=tuple(map(cache_point_from_proto, message.cache_points)),
        source=address_from_proto(message.source) if message.HasField("source") else None,
        is_moving=message.is_moving,
        trace=TraceContext(message.traceparent, message.tracestate),
        parking=_parking_from_proto(message),
        time_left_ms=message.time_left_ms if message.HasField("time_left_ms") else None,
    )


def _parking_to_proto(parking: Parking | None) -> pb.Parking | None:
    if parking is None:
        return None
    return pb.Parking(
        stream_id=parking.stream_id,
        owner=parking.owner,
        order=parking.order,
        kind=parking.kind,
    )


def _parking_from_proto(message: pb.GenerateRequest) -> Parking | None:
    parking = message.parking
    return (
        Parking(parking.stream_id, parking.owner, parking.order, parking.kind)
        if message.HasField("parking")
        else None
    )


def take_to_proto(wanted: TakeStream) -> pb.TakeStreamRequest:
    return pb.TakeStreamRequest(
        stream_id=wanted.stream_id, owner=wanted.owner, kinds=wanted.kinds, is_end=wanted.is_end
    )


def take_from_proto(message: pb.TakeStreamRequest) -> TakeStream:
    return TakeStream(message.stream_id, message.owner, tuple(message.kinds), message.is_end)


def parked_to_proto(parked: ParkedStream) -> pb.ParkedStream:
    return pb.ParkedStream(
        request=generate_to_proto(parked.request),
        logprobs=map(logprob_to_proto, parked.logprobs),
        finish_reason=FINISH_TO_PROTO[parked.finish_reason],
        receipt=receipt_to_proto(parked.receipt),
    )


def parked_from_proto(message: pb.ParkedStream) -> ParkedStream:
    return ParkedStream(
        request=generate_from_proto(message.request),
        logprobs=tuple(map(logprob_from_proto, message.logprobs)),
        finish_reason=FINISH_FROM_PROTO.get(message.finish_reason),
        receipt=receipt_from_proto(message.receipt),
    )
