"""How messages of core (`messages.py`, `replicas.py`, `sampling.py`) are protobuf (replica.proto).

`to_proto` and `from_proto` pairs, one per message, in the order of the modules they mirror.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from google.protobuf.message import Message

from baton.core.errors import (
    BatonError,
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    StreamMoved,
    Unavailable,
)
from baton.core.ids import Epoch, ReplicaId, RequestId, TransferId
from baton.core.messages import (
    CachePoint,
    GenerateRequest,
    ParkedStream,
    Pooling,
    PrefillDone,
    PrefillGranted,
    PrefillRequest,
    PullOffered,
    PullRequest,
    Receipt,
    TokenUpdate,
)
from baton.core.parking import Parking, TakeStream
from baton.core.replicas import Capacity, Demand, ReplicaAddress
from baton.core.sampling import FinishReason, TokenLogprob
from baton.core.step_times import StepTimes
from baton.core.tracing import TraceContext
from baton.proto import replica_pb2 as pb
from baton.proto.kv_wire import layout_from_proto, layout_to_proto
from baton.proto.sampling_wire import sampling_from_proto, sampling_to_proto

_FINISH_TO_PROTO = {
    None: pb.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}
_FINISH_FROM_PROTO = {number: reason for reason, number in _FINISH_TO_PROTO.items()}

_POOLING_TO_PROTO = {
    None: pb.POOLING_UNSPECIFIED,
    Pooling.MEAN: pb.POOLING_MEAN,
    Pooling.LAST: pb.POOLING_LAST,
    Pooling.LOGITS: pb.POOLING_LOGITS,
}
_POOLING_FROM_PROTO = {number: pooling for pooling, number in _POOLING_TO_PROTO.items()}

_ERROR_TYPES: dict[pb.ErrorCode.ValueType, type[BatonError]] = {
    pb.ERROR_CODE_INVALID_REQUEST: InvalidRequest,
    pb.ERROR_CODE_OVERLOADED: Overloaded,
    pb.ERROR_CODE_STREAM_MOVED: StreamMoved,  # before what it is one of
    pb.ERROR_CODE_UNAVAILABLE: Unavailable,
    pb.ERROR_CODE_DEADLINE_EXCEEDED: DeadlineExceeded,
    pb.ERROR_CODE_CANCELLED: Cancelled,
}


class _Fields(NamedTuple):
    """The names of a message's plain fields: those that are numbers or text, and those that are
    tuples of them.

    They travel by name, and are called the same in our own type.
    """

    single: tuple[str, ...]
    repeated: tuple[str, ...]


def _fields_of(kind: type[Message]) -> _Fields:
    plain = [field for field in kind.DESCRIPTOR.fields if field.message_type is None]
    return _Fields(
        single=tuple(field.name for field in plain if not field.is_repeated),
        repeated=tuple(field.name for field in plain if field.is_repeated),
    )


def _by_name(of: object, fields: _Fields) -> dict[str, Any]:
    values = {name: getattr(of, name) for name in fields.single}
    for name in fields.repeated:
        values[name] = tuple(getattr(of, name))
    return values


_RECEIPT, _DEMAND = _fields_of(pb.Receipt), _fields_of(pb.Demand)
_CAPACITY, _STEP_TIMES = _fields_of(pb.Capacity), _fields_of(pb.StepTimes)


def logprob_to_proto(logprob: TokenLogprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(
        token=logprob.token,
        logprob=logprob.logprob,
        top=[pb.TopToken(token=token, logprob=value) for token, value in logprob.top],
    )


def logprob_from_proto(message: pb.TokenLogprob) -> TokenLogprob:
    top = tuple((entry.token, entry.logprob) for entry in message.top)
    return TokenLogprob(message.token, message.logprob, top)


def address_to_proto(address: ReplicaAddress) -> pb.ReplicaAddress:
    return pb.ReplicaAddress(
        replica_id=address.replica_id, epoch=address.epoch, address=address.address
    )


def address_from_proto(message: pb.ReplicaAddress) -> ReplicaAddress:
    return ReplicaAddress(
        replica_id=ReplicaId(message.replica_id),
        epoch=Epoch(message.epoch),
        address=message.address,
    )


def cache_point_to_proto(point: CachePoint) -> pb.CachePoint:
    return pb.CachePoint(num_tokens=point.num_tokens, ttl_ms=round(point.ttl_s * 1e3))


def cache_point_from_proto(message: pb.CachePoint) -> CachePoint:
    return CachePoint(message.num_tokens, message.ttl_ms / 1e3)


def generate_to_proto(request: GenerateRequest) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id=request.request_id,
        attempt=request.attempt,
        prompt=request.prompt,
        output=request.output,
        sampling=sampling_to_proto(request.sampling),
        salt=request.salt,
        prefill=[address_to_proto(address) for address in request.prefill],
        priority=request.priority,
        pooling=_POOLING_TO_PROTO[request.pooling],
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
        prefill=tuple(address_from_proto(address) for address in message.prefill),
        priority=message.priority,
        pooling=_pooling_from_proto(message.pooling),
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
        finish_reason=_FINISH_TO_PROTO[parked.finish_reason],
        receipt=receipt_to_proto(parked.receipt),
    )


def parked_from_proto(message: pb.ParkedStream) -> ParkedStream:
    return ParkedStream(
        request=generate_from_proto(message.request),
        logprobs=tuple(map(logprob_from_proto, message.logprobs)),
        finish_reason=_FINISH_FROM_PROTO.get(message.finish_reason),
        receipt=receipt_from_proto(message.receipt),
    )


def _pooling_from_proto(number: pb.Pooling.ValueType) -> Pooling | None:
    """Raises InvalidRequest for one that this process does not know: it cannot be left out."""
    if number not in _POOLING_FROM_PROTO:
        raise InvalidRequest(f"pooling of unknown kind {number}", field="pooling")
    return _POOLING_FROM_PROTO[number]


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
        priority=request.priority,
        tenant=request.tenant,
        cache_points=map(cache_point_to_proto, request.cache_points),
        source=None if request.source is None else address_to_proto(request.source),
        gateway_epoch=request.gateway_epoch or "",
        traceparent=request.trace.traceparent,
        tracestate=request.trace.tracestate,
        wants_progress=request.wants_progress,
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
        priority=message.priority,
        tenant=message.tenant,
        cache_points=tuple(map(cache_point_from_proto, message.cache_points)),
        source=address_from_proto(message.source) if message.HasField("source") else None,
        gateway_epoch=Epoch(message.gateway_epoch) if message.gateway_epoch else None,
        trace=TraceContext(message.traceparent, message.tracestate),
        wants_progress=message.wants_progress,
        time_left_ms=message.time_left_ms,
    )


def granted_to_proto(granted: PrefillGranted) -> pb.PrefillGranted:
    return pb.PrefillGranted(
        transfer_id=granted.transfer_id,
        sender_epoch=granted.sender_epoch,
        layout=layout_to_proto(granted.layout),
        num_tokens=granted.num_tokens,
        num_cached=granted.num_cached,
    )


def granted_from_proto(message: pb.PrefillGranted) -> PrefillGranted:
    return PrefillGranted(
        transfer_id=TransferId(message.transfer_id),
        sender_epoch=Epoch(message.sender_epoch),
        layout=layout_from_proto(message.layout),
        num_tokens=message.num_tokens,
        num_cached=message.num_cached,
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
    )


def offered_from_proto(message: pb.PullOffered) -> PullOffered:
    return PullOffered(
        transfer_id=TransferId(message.transfer_id),
        sender_epoch=Epoch(message.sender_epoch),
        layout=layout_from_proto(message.layout),
        num_tokens=message.num_tokens,
    )


def receipt_to_proto(receipt: Receipt) -> pb.Receipt:
    return pb.Receipt(**_by_name(receipt, _RECEIPT))


def receipt_from_proto(message: pb.Receipt) -> Receipt:
    return Receipt(**_by_name(message, _RECEIPT))


def error_to_proto(error: Exception) -> pb.Error:
    """What is not one of ours becomes UNAVAILABLE: the request may be tried elsewhere."""
    for code, error_type in _ERROR_TYPES.items():
        if isinstance(error, error_type):
            message = pb.Error(code=code, message=str(error))
            if isinstance(error, InvalidRequest):
                message.field = error.field or ""
            elif isinstance(error, Overloaded):
                message.retry_after_s = error.retry_after_s
            return message
    text = f"{type(error).__name__}: {error}"
    return pb.Error(code=pb.ERROR_CODE_UNAVAILABLE, message=text)


def error_from_proto(message: pb.Error) -> BatonError:
    if message.code == pb.ERROR_CODE_INVALID_REQUEST:
        return InvalidRequest(message.message, field=message.field or None)
    if message.code == pb.ERROR_CODE_OVERLOADED:
        return Overloaded(message.message, retry_after_s=message.retry_after_s)
    return _ERROR_TYPES.get(message.code, Unavailable)(message.message)


def update_to_proto(update: TokenUpdate) -> pb.TokenUpdate:
    return pb.TokenUpdate(
        request_id=update.request_id,
        attempt=update.attempt,
        tokens=update.tokens,
        logprobs=[logprob_to_proto(logprob) for logprob in update.logprobs],
        prompt_logprobs=[logprob_to_proto(logprob) for logprob in update.prompt_logprobs],
        embedding=update.embedding,
        finish_reason=_FINISH_TO_PROTO[update.finish_reason],
        receipt=None if update.receipt is None else receipt_to_proto(update.receipt),
        error=None if update.error is None else error_to_proto(update.error),
    )


def update_from_proto(message: pb.TokenUpdate) -> TokenUpdate:
    return TokenUpdate(
        request_id=RequestId(message.request_id),
        attempt=message.attempt,
        tokens=tuple(message.tokens),
        logprobs=tuple(logprob_from_proto(logprob) for logprob in message.logprobs),
        prompt_logprobs=tuple(logprob_from_proto(logprob) for logprob in message.prompt_logprobs),
        embedding=tuple(message.embedding),
        finish_reason=_FINISH_FROM_PROTO.get(message.finish_reason),
        receipt=receipt_from_proto(message.receipt) if message.HasField("receipt") else None,
        error=error_from_proto(message.error) if message.HasField("error") else None,
    )


def demand_to_proto(demand: Demand) -> pb.Demand:
    return pb.Demand(**_by_name(demand, _DEMAND))


def demand_from_proto(message: pb.Demand) -> Demand:
    return Demand(**_by_name(message, _DEMAND))


def step_times_to_proto(times: StepTimes) -> pb.StepTimes:
    return pb.StepTimes(**_by_name(times, _STEP_TIMES))


def step_times_from_proto(message: pb.StepTimes) -> StepTimes:
    return StepTimes(**_by_name(message, _STEP_TIMES))


def capacity_to_proto(capacity: Capacity) -> pb.Capacity:
    times = capacity.step_times
    return pb.Capacity(
        **_by_name(capacity, _CAPACITY),
        step_times=None if times is None else step_times_to_proto(times),
    )


def capacity_from_proto(message: pb.Capacity) -> Capacity:
    is_timed = message.HasField("step_times")
    capacity = Capacity(
        **_by_name(message, _CAPACITY),
        step_times=step_times_from_proto(message.step_times) if is_timed else None,
    )
    return capacity if capacity.slowness else replace(capacity, slowness=1.0)  # not told
