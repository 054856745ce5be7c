"""Translates Baton's errors to gRPC statuses; the only place that does.

Details beyond the status code are in a google.rpc.Status, in the trailing metadatum
`grpc-status-details-bin`:

    ErrorInfo    always: a stable name of the error
    BadRequest   the field at fault, and the remedy
    RetryInfo    present exactly when the request was refused before any work was done
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2 as details_pb
from google.rpc import status_pb2

from baton.core.errors import (
    Cancelled,
    ContextExceeded,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    ModelForbidden,
    ModelNotFound,
    NotKept,
    Overloaded,
    RateLimited,
    RequestNotFound,
    RequestTooSlow,
    StreamNotFound,
    Unauthenticated,
    Unavailable,
)
from baton.gateway.requests.request_ids import logged_request_id
from grpc import StatusCode

log = logging.getLogger(__name__)

DETAILS_KEY = "grpc-status-details-bin"
DOMAIN = "baton"
MAX_MESSAGE_BYTES = 1024
"""A message is sent three times, once percent-encoded; clients refuse more than 8 KiB in all."""


class Translation(NamedTuple):
    code: StatusCode
    reason: str
    """The `code` of the HTTP API, in capitals."""


TRANSLATIONS: dict[type[BaseException], Translation] = {
    InvalidRequest: Translation(StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
    ContextExceeded: Translation(StatusCode.INVALID_ARGUMENT, "CONTEXT_LENGTH_EXCEEDED"),
    Unauthenticated: Translation(StatusCode.UNAUTHENTICATED, "INVALID_API_KEY"),
    Forbidden: Translation(StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"),
    ModelForbidden: Translation(StatusCode.PERMISSION_DENIED, "MODEL_NOT_FOUND"),
    ModelNotFound: Translation(StatusCode.NOT_FOUND, "MODEL_NOT_FOUND"),
    StreamNotFound: Translation(StatusCode.NOT_FOUND, "STREAM_NOT_FOUND"),
    RequestNotFound: Translation(StatusCode.NOT_FOUND, "REQUEST_NOT_FOUND"),
    NotKept: Translation(StatusCode.NOT_FOUND, "NOT_FOUND"),
    Overloaded: Translation(StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"),
    RateLimited: Translation(StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMIT_EXCEEDED"),
    RequestTooSlow: Translation(StatusCode.CANCELLED, "REQUEST_TIMEOUT"),
    Cancelled: Translation(StatusCode.CANCELLED, "CANCELLED"),
    Unavailable: Translation(StatusCode.UNAVAILABLE, "UNAVAILABLE"),
    DeadlineExceeded: Translation(StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
}
INTERNAL = Translation(StatusCode.INTERNAL, "INTERNAL_ERROR")


class GrpcStatus(NamedTuple):
    code: StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


def translation_of(error: BaseException) -> Translation:
    kinds = type(error).__mro__
    return next((TRANSLATIONS[kind] for kind in kinds if kind in TRANSLATIONS), INTERNAL)


def grpc_status(error: BaseException) -> GrpcStatus:
    """The status of the nearest class that has a translation; INTERNAL for any unexpected
    exception."""
    known = translation_of(error)
    if known is INTERNAL:
        log.error("a request failed", exc_info=error, extra={"request_id": logged_request_id.get()})
        message = "the server failed; its log says why"
    else:
        message = _shortened(str(error))
    number: int = known.code.value[0]
    status = status_pb2.Status(code=number, message=message)
    status.details.extend(_packed(detail) for detail in _details(error, known, message))
    return GrpcStatus(known.code, message, ((DETAILS_KEY, status.SerializeToString()),))


def _details(error: BaseException, known: Translation, message: str) -> list[Message]:
    details: list[Message] = [details_pb.ErrorInfo(reason=known.reason, domain=DOMAIN)]
    if isinstance(error, InvalidRequest) and error.field:
        violation = details_pb.BadRequest.FieldViolation(
            field=_shortened(error.field), description=message
        )
        details.append(details_pb.BadRequest(field_violations=[violation]))
    if isinstance(error, Overloaded):
        delay = Duration()
        delay.FromNanoseconds(round(error.retry_after_s * 1e9))
        details.append(details_pb.RetryInfo(retry_delay=delay))
    return details


def _packed(detail: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(detail)
    return packed


def _shortened(text: str) -> str:
    """Messages may quote what the caller sent, at any length."""
    data = text.encode(errors="replace")
    if len(data) <= MAX_MESSAGE_BYTES:
        return text
    return data[:MAX_MESSAGE_BYTES].decode(errors="ignore") + " ..."
