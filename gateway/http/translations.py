"""Translates Baton's errors to HTTP statuses, for all APIs; the only place that does.

The bodies differ by API: `errors.py` for OpenAI's, `anthropic_errors.py` for Anthropic's.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

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
    RequestTooLarge,
    RequestTooSlow,
    StreamNotFound,
    Unauthenticated,
    Unavailable,
)
from baton.gateway.requests.request_ids import logged_request_id

log = logging.getLogger(__name__)


class Translation(NamedTuple):
    status: int
    type: str
    code: str | None


TRANSLATIONS: dict[type[BaseException], Translation] = {
    InvalidRequest: Translation(400, "invalid_request_error", None),
    ContextExceeded: Translation(400, "invalid_request_error", "context_length_exceeded"),
    Unauthenticated: Translation(401, "invalid_request_error", "invalid_api_key"),
    Forbidden: Translation(403, "invalid_request_error", "permission_denied"),
    ModelForbidden: Translation(403, "invalid_request_error", "model_not_found"),
    ModelNotFound: Translation(404, "invalid_request_error", "model_not_found"),
    StreamNotFound: Translation(404, "invalid_request_error", "stream_not_found"),
    RequestNotFound: Translation(404, "invalid_request_error", "request_not_found"),
    NotKept: Translation(404, "invalid_request_error", "not_found"),
    RequestTooLarge: Translation(413, "invalid_request_error", "request_too_large"),
    Overloaded: Translation(429, "rate_limit_error", "overloaded"),
    RateLimited: Translation(429, "rate_limit_error", "rate_limit_exceeded"),
    RequestTooSlow: Translation(408, "invalid_request_error", "request_timeout"),
    Cancelled: Translation(499, "invalid_request_error", "cancelled"),
    Unavailable: Translation(503, "service_unavailable_error", "unavailable"),
    DeadlineExceeded: Translation(504, "timeout_error", "deadline_exceeded"),
}
"""Each error's status, with OpenAI's type and code."""
INTERNAL = Translation(500, "server_error", "internal_error")


def translate(error: BaseException) -> Translation:
    """The translation of the nearest class that has one; 500 for any unexpected exception."""
    for kind in type(error).__mro__:
        if kind in TRANSLATIONS:
            return TRANSLATIONS[kind]
    return INTERNAL


def public_message(error: BaseException) -> str:
    """The message for the caller. Internal errors are logged here, and not revealed."""
    if translate(error) is not INTERNAL:
        return str(error)
    log.error("a request failed", exc_info=error, extra={"request_id": logged_request_id.get()})
    return "the server failed; its log says why"
