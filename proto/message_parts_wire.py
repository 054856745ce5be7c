"""What several messages of replica.proto carry: addresses, cache points, log probabilities, and
enumerations."""

from __future__ import annotations

from baton.core.errors import (
    InvalidRequest,
)
from baton.core.ids import Epoch, ReplicaId
from baton.core.messages import (
    CachePoint,
    Pooling,
)
from baton.core.replicas import ReplicaAddress
from baton.core.sampling import FinishReason, TokenLogprob
from baton.proto import replica_pb2 as pb

FINISH_TO_PROTO = {
    None: pb.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}
FINISH_FROM_PROTO = {number: reason for reason, number in FINISH_TO_PROTO.items()}
POOLING_TO_PROTO = {
    None: pb.POOLING_UNSPECIFIED,
    Pooling.MEAN: pb.POOLING_MEAN,
    Pooling.LAST: pb.POOLING_LAST,
    Pooling.LOGITS: pb.POOLING_LOGITS,
}
_POOLING_FROM_PROTO = {number: pooling for pooling, number in POOLING_TO_PROTO.items()}


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


def logprob_to_proto(logprob: TokenLogprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(
        token=logprob.token,
        logprob=logprob.logprob,
        top=[pb.TopToken(token=token, logprob=value) for token, value in logprob.top],
    )


def logprob_from_proto(message: pb.TokenLogprob) -> TokenLogprob:
    top = tuple((entry.token, entry.logprob) for entry in message.top)
    return TokenLogprob(message.token, message.logprob, top)


def pooling_from_proto(number: pb.Pooling.ValueType) -> Pooling | None:
    """Raises InvalidRequest for one that this process does not know: it cannot be left out."""
    if number not in _POOLING_FROM_PROTO:
        raise InvalidRequest(f"pooling of unknown kind {number}", field="pooling")
    return _POOLING_FROM_PROTO[number]
