"""The name a request goes by: the client's if it gave one, ours if not."""

from __future__ import annotations

import re
import secrets

from baton.core.errors import InvalidRequest
from baton.core.ids import RequestId, new_request_id

ALLOWED = re.compile(r"[\x21-\x7e]{1,128}")


def public_request_id(given: str | None, *, field: str) -> str:
    """What the client is told. Raises InvalidRequest if its own id cannot be a header's value."""
    if not given:
        return new_request_id()
    if not ALLOWED.fullmatch(given):
        raise InvalidRequest(f"{field} must be 1 to 128 printable ASCII characters", field=field)
    return given


def unique_request_id(public_id: str) -> RequestId:
    """What replicas are told: a client may use one id twice, but a generation never shares one."""
    return RequestId(f"{public_id}-{secrets.token_hex(4)}")
