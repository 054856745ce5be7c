"""Errors in Anthropic's format, with Anthropic's status codes.

{"type": "error", "error": {"type": "overloaded_error", "message": ...}, "request_id": ...}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from baton.core.errors import ContextExceeded, InvalidRequest, Overloaded, RateLimited
from baton.gateway.http.translations import TRANSLATIONS, public_message, translate
from baton.gateway.requests.request_ids import logged_request_id

PATH = "/v1/messages"
BUSY = 529
"""The server is overloaded for all callers; 429 is for a tenant's own limits."""
INVALID, FAILED = "invalid_request_error", "api_error"
TYPE_BY_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    BUSY: "overloaded_error",
}
TOO_LONG = "prompt is too long"
"""Agents look for these words, and then shorten their context."""


class ThreadUnsupported(msgspec.Struct):
    """The tool runner of Anthropic's package asks for a thread by default, and continues without
    one when it gets this error."""

    error_code: Literal["thread_unsupported_request"] = "thread_unsupported_request"
    unsupported: tuple[str, ...] = ("thread",)


class MessagesErrorDetail(msgspec.Struct):
    type: str
    message: str
    details: ThreadUnsupported | msgspec.UnsetType = msgspec.UNSET


class MessagesErrorBody(msgspec.Struct, kw_only=True):
    type: Literal["error"] = "error"
    error: MessagesErrorDetail
    request_id: str | None
    """The value of the header `request-id`."""


class MessagesErrors:
    """The ErrorShape of the Messages API."""

    body = MessagesErrorBody

    def status(self, error: BaseException) -> int:
        is_busy = isinstance(error, Overloaded) and not isinstance(error, RateLimited)
        return BUSY if is_busy else translate(error).status

    def write(self, error: BaseException) -> MessagesErrorBody:
        message = public_message(error)
        if isinstance(error, ContextExceeded):
            message = f"{TOO_LONG}: {message}"
        body = self.of_status(self.status(error), message)
        if isinstance(error, InvalidRequest) and error.field == "thread":
            body.error.details = ThreadUnsupported()
        return body

    def of_status(self, status: int, message: str) -> MessagesErrorBody:
        detail = MessagesErrorDetail(_type(status), message)
        return MessagesErrorBody(error=detail, request_id=logged_request_id.get() or None)

    def names_by_status(self) -> Mapping[int, list[str]]:
        statuses = {*(one.status for one in TRANSLATIONS.values()), 500, BUSY}
        return {status: [_type(status)] for status in statuses}


def _type(status: int) -> str:
    return TYPE_BY_STATUS.get(status, FAILED if status >= 500 else INVALID)


def is_messages(path: str) -> bool:
    return path == PATH or path.startswith(f"{PATH}/")
