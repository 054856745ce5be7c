"""What can go wrong for a caller.

BatonClientError
├── InvalidRequest        the request's fault; `field` says where    INVALID_ARGUMENT
│   └── ModelNotFound     no such model is served there              NOT_FOUND
├── Unauthenticated       no API key, or an unknown one              UNAUTHENTICATED
├── Overloaded            refused before any work was done           RESOURCE_EXHAUSTED
├── Unavailable           the server, or its replicas, are away      UNAVAILABLE
├── DeadlineExceeded      `timeout_s` has passed                     DEADLINE_EXCEEDED
├── RequestCancelled      the call was taken back                    CANCELLED
└── ServerFailed          anything else: a fault of the server       INTERNAL, UNKNOWN, ...
"""

from __future__ import annotations

import grpc


class BatonClientError(Exception):
    """The root of the tree drawn above."""

    def __init__(self, message: str, code: grpc.StatusCode) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class InvalidRequest(BatonClientError):
    """`field` is the path of the offending field of the request, where the server named one."""

    field: str | None = None


class ModelNotFound(InvalidRequest):
    """No model of that name is served there."""


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
    """The call was taken back before its end."""


class ServerFailed(BatonClientError):
    """A fault of the server's own."""


_KINDS: dict[grpc.StatusCode, type[BatonClientError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: ModelNotFound,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: RequestCancelled,
}


def invalid_request(message: str, *, field: str) -> InvalidRequest:
    """For what cannot even be sent."""
    error = InvalidRequest(message, grpc.StatusCode.INVALID_ARGUMENT)
    error.field = field
    return error


def from_rpc_error(error: grpc.RpcError) -> BatonClientError:
    """The typed form of what a gRPC call raised."""
    if not isinstance(error, grpc.Call):
        return ServerFailed(str(error), grpc.StatusCode.UNKNOWN)
    code = error.code()
    translated = _KINDS.get(code, ServerFailed)(error.details() or code.name, code)
    metadata = {key: value for key, value in error.trailing_metadata() or ()}
    if isinstance(translated, InvalidRequest):
        field = metadata.get("field")
        translated.field = field if isinstance(field, str) else None
    if isinstance(translated, Overloaded) and "retry-after-ms" in metadata:
        translated.retry_after_s = int(metadata["retry-after-ms"]) / 1000
    return translated
