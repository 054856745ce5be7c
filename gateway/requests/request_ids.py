"""Request ids: the client's own if it sent one, else a new one."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar

from baton.core.errors import InvalidRequest
from baton.core.ids import RequestId, new_request_id

ALLOWED = re.compile(r"[\x21-\x7e]{1,128}")


logged_request_id = ContextVar("logged_request_id", default="")
"""The request that the current task serves, for log lines."""


def public_request_id(given: str | None, *, field: str) -> str:
    """The public id of a request, used in log lines of this task from now on. Raises InvalidRequest
    if the client's id cannot be a header value.
    """
    if given and not ALLOWED.fullmatch(given):
        raise InvalidRequest(f"{field} must be 1 to 128 printable ASCII characters", field=field)
    request_id = given or new_request_id()
    logged_request_id.set(request_id)
    return request_id


def loggable_request_id(given: str | bytes) -> str:
    """The id for a log line, before validation; empty if it is invalid."""
    return given if isinstance(given, str) and ALLOWED.fullmatch(given) else ""


def unique_request_id(public_id: str) -> RequestId:
    """A unique id for replicas, since a client may use the same public id twice."""
    return RequestId(f"{public_id}-{secrets.token_hex(4)}")
