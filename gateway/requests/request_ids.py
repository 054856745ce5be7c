"""The name a request goes by: the client's if it gave one, ours if not."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar

from baton.core.errors import InvalidRequest
from baton.core.ids import RequestId, new_request_id

ALLOWED = re.compile(r"[\x21-\x7e]{1,128}")


logged_request_id = ContextVar("logged_request_id", default="")
"""Which request this task serves, for its log."""


def public_request_id(given: str | None, *, field: str) -> str:
    """What the client is told, and from now on the log of this task.

    Raises InvalidRequest if its own id cannot be a header's value.
    """
    if given and not ALLOWED.fullmatch(given):
        raise InvalidRequest(f"{field} must be 1 to 128 printable ASCII characters", field=field)
    request_id = given or new_request_id()
    logged_request_id.set(request_id)
    return request_id


def loggable_request_id(given: str | bytes) -> str:
    """What a log may say of an id that nobody has looked at: nothing, if it is none."""
    return given if isinstance(given, str) and ALLOWED.fullmatch(given) else ""


def unique_request_id(public_id: str) -> RequestId:
    """What replicas are told: a client may use one id twice, but a generation never shares one."""
    return RequestId(f"{public_id}-{secrets.token_hex(4)}")
