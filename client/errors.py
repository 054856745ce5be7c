"""The client's exceptions.

BatonClientError
├── InvalidRequest        invalid; `field` names the field           INVALID_ARGUMENT
│   ├── ModelNotFound     no such model is served there              NOT_FOUND
│   ├── Forbidden         not with this API key                      PERMISSION_DENIED
│   └── StreamNotFound    the stream to be resumed is not held       NOT_FOUND
├── Unauthenticated       no API key, or an unknown one              UNAUTHENTICATED
├── Overloaded            refused before any work was done           RESOURCE_EXHAUSTED
├── Unavailable           the server, or its replicas, are away      UNAVAILABLE
├── DeadlineExceeded      `timeout_s` has passed                     DEADLINE_EXCEEDED
├── RequestCancelled      the call was cancelled                     CANCELLED
└── ServerFailed          anything else: a fault of the server       INTERNAL, UNKNOWN, ...

The server's details travel as a google.rpc.Status beside the code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

DETAILS_KEY = "grpc-status-details-bin"
STREAM_NOT_FOUND = "STREAM_NOT_FOUND"


class BatonClientError(Exception):
    """The root of the tree drawn above."""

    def __init__(self, message: str, code: grpc.StatusCode, *, reason: str = "") -> None:
        super().__init__(message, code)  # both, or it could not be copied, nor pickled
        self.message = message
        self.code = code
        self.reason = reason
        """The server's stable name of the error; empty if it does not come from the server."""

    def __str__(self) -> str:
        return self.message


class InvalidRequest(BatonClientError):
    """`field` is the path of the offending field of the request, where the server named one."""

    field: str | None = None


class ModelNotFound(InvalidRequest):
    """No model of that name is served there."""


class Forbidden(InvalidRequest):
    """The API key is known, but does not allow this: another model, or a smaller `priority`."""


class StreamNotFound(InvalidRequest):
    """The stream has expired, or lives on another gateway."""


class Unauthenticated(BatonClientError):
    """No API key was sent, or one the server does not know."""


class Overloaded(BatonClientError):
    """Refused before any work was done.

    `retry_after_s` is the server's advice; None if it gave none, and then repeating will not help
    (the request is larger than the server reads, for example).
    """

    retry_after_s: float | None = None


class Unavailable(BatonClientError):
    """The server cannot be reached, or has no replica that could finish. Safe to repeat."""


class DeadlineExceeded(BatonClientError):
    """The time that the caller or the server allows has passed."""


class RequestCancelled(BatonClientError):
    """The call was cancelled."""


class ServerFailed(BatonClientError):
    """An internal error of the server."""


_KINDS: dict[grpc.StatusCode, type[BatonClientError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: ModelNotFound,
    grpc.StatusCode.PERMISSION_DENIED: Forbidden,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: RequestCancelled,
}


BROKEN = "Stream removed"
"""What gRPC's core says, as UNKNOWN, where a connection ends in mid-stream without a status: the
server was killed, say. At other moments that is UNAVAILABLE."""


class FailedCall(Protocol):
    """What both of gRPC's libraries raise."""

    def code(self) -> grpc.StatusCode: ...

    def details(self) -> str | None: ...

    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...


def invalid_request(message: str, *, field: str) -> InvalidRequest:
    """The error of a request that cannot be sent."""
    error = InvalidRequest(message, grpc.StatusCode.INVALID_ARGUMENT)
    error.field = field
    return error


def out_of_time(cause: BatonClientError) -> DeadlineExceeded:
    """The error of a wait that would end after the deadline."""
    return DeadlineExceeded(cause.message, grpc.StatusCode.DEADLINE_EXCEEDED)


def client_closed() -> RequestCancelled:
    """The error of calls of a closed client."""
    return RequestCancelled("the client has been closed", grpc.StatusCode.CANCELLED)


def from_rpc_error(error: grpc.RpcError) -> BatonClientError:
    """The typed form of what a gRPC call raised."""
    if not hasattr(error, "code"):
        return ServerFailed(str(error), grpc.StatusCode.UNKNOWN)
    call = cast(FailedCall, error)
    return from_status(call.code(), call.details() or "", call.trailing_metadata() or ())


def from_status(
    code: grpc.StatusCode, message: str, metadata: Iterable[tuple[str, str | bytes]]
) -> BatonClientError:
    details = _Details(dict(metadata).get(DETAILS_KEY, b""))
    kind = _KINDS.get(code, ServerFailed)
    if code is grpc.StatusCode.UNKNOWN and message.startswith(BROKEN):
        kind = Unavailable
    if kind is ModelNotFound and details.info.reason == STREAM_NOT_FOUND:
        kind = StreamNotFound
    error = kind(details.message or message or code.name, code, reason=details.info.reason)
    if isinstance(error, InvalidRequest):
        error.field = next((v.field for v in details.request.field_violations), None) or None
    if isinstance(error, Overloaded) and details.retry is not None:
        error.retry_after_s = details.retry.retry_delay.ToTimedelta().total_seconds()
    return error


class _Details:
    """The parts of a google.rpc.Status that mean something here."""

    def __init__(self, data: str | bytes) -> None:
        self.request = error_details_pb2.BadRequest()
        self.info = error_details_pb2.ErrorInfo()
        self.retry: error_details_pb2.RetryInfo | None = None
        status = status_pb2.Status()
        try:
            status.ParseFromString(data if isinstance(data, bytes) else b"")
            for detail in status.details:
                retry = error_details_pb2.RetryInfo()
                if detail.Unpack(retry):
                    self.retry = retry
                else:
                    _ = detail.Unpack(self.request) or detail.Unpack(self.info)
        except DecodeError:
            pass  # a proxy's answer: the code alone has to do
        self.message: str = status.message
