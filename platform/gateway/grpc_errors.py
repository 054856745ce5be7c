"""Baton's errors as gRPC: the one place where they become a status.

Trailing metadata say what a status code cannot: `field`, the path of the offending field, and
`retry-after-ms`, present exactly when the request was refused before any work was done.
"""

from __future__ import annotations

import logging
import math
from typing import NamedTuple

from grpc import StatusCode

from baton.core.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    Unauthenticated,
    Unavailable,
)

log = logging.getLogger(__name__)

MAX_DETAILS_BYTES = 2048
"""Details travel as metadata, percent-encoded; clients refuse an answer with more than 8 KiB."""

CODES: dict[type[BaseException], StatusCode] = {
    InvalidRequest: StatusCode.INVALID_ARGUMENT,
    Unauthenticated: StatusCode.UNAUTHENTICATED,
    ModelNotFound: StatusCode.NOT_FOUND,
    Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    Cancelled: StatusCode.CANCELLED,
    Unavailable: StatusCode.UNAVAILABLE,
    DeadlineExceeded: StatusCode.DEADLINE_EXCEEDED,
}


class GrpcStatus(NamedTuple):
    code: StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str], ...]


def grpc_status(error: BaseException) -> GrpcStatus:
    """By the nearest class that has a code. What nobody raised on purpose is INTERNAL."""
    code = next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), None)
    if code is None:
        log.error("a request failed", exc_info=error)
        return GrpcStatus(StatusCode.INTERNAL, "the server failed; its log says why", ())
    metadata: list[tuple[str, str]] = []
    if isinstance(error, InvalidRequest) and error.field and error.field.isascii():
        metadata.append(("field", error.field))
    if isinstance(error, Overloaded):
        metadata.append(("retry-after-ms", str(math.ceil(error.retry_after_s * 1000))))
    return GrpcStatus(code, _shortened(str(error)), tuple(metadata))


def _shortened(text: str) -> str:
    """Messages quote what the caller sent, at whatever length."""
    data = text.encode()
    if len(data) <= MAX_DETAILS_BYTES:
        return text
    return data[:MAX_DETAILS_BYTES].decode(errors="ignore") + " ..."
