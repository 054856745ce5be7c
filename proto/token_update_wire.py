"""How tokens, receipts and errors of a request are protobuf (replica.proto)."""

from __future__ import annotations

from baton.core.errors import (
    BatonError,
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    StreamMoved,
    Unavailable,
)
from baton.core.ids import RequestId
from baton.core.messages import (
    Receipt,
    TokenUpdate,
)
from baton.proto import replica_pb2 as pb
from baton.proto.message_parts_wire import (
    FINISH_FROM_PROTO,
    FINISH_TO_PROTO,
    logprob_from_proto,
    logprob_to_proto,
)
from baton.proto.plain_fields import plain_fields_of, values_by_name

_ERROR_TYPES: dict[pb.ErrorCode.ValueType, type[BatonError]] = {
    pb.ERROR_CODE_INVALID_REQUEST: InvalidRequest,
    pb.ERROR_CODE_OVERLOADED: Overloaded,
    pb.ERROR_CODE_STREAM_MOVED: StreamMoved,  # before what it is one of
    pb.ERROR_CODE_UNAVAILABLE: Unavailable,
    pb.ERROR_CODE_DEADLINE_EXCEEDED: DeadlineExceeded,
    pb.ERROR_CODE_CANCELLED: Cancelled,
}
_RECEIPT = plain_fields_of(pb.Receipt)


def receipt_to_proto(receipt: Receipt) -> pb.Receipt:
    return pb.Receipt(**values_by_name(receipt, _RECEIPT))


def receipt_from_proto(message: pb.Receipt) -> Receipt:
    return Receipt(**values_by_name(message, _RECEIPT))


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
        finish_reason=FINISH_TO_PROTO[update.finish_reason],
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
        finish_reason=FINISH_FROM_PROTO.get(message.finish_reason),
        receipt=receipt_from_proto(message.receipt) if message.HasField("receipt") else None,
        error=error_from_proto(message.error) if message.HasField("error") else None,
    )
