"""Session keys of conversations: a header, OpenAI's `prompt_cache_key`, or a gRPC field."""

from __future__ import annotations

from baton.core.errors import InvalidRequest
from baton.gateway.access.api_keys import Caller

MAX_CHARS = 256


def session_key(*given: tuple[str, str | None]) -> str:
    """The first that is not empty of (the caller's name for it, value). Raises InvalidRequest."""
    for field, value in given:
        if not value:
            continue
        if len(value) > MAX_CHARS:
            raise InvalidRequest(
                f"{field} has {len(value)} characters; at most {MAX_CHARS} can be", field=field
            )
        return value
    return ""


def session_of(caller: Caller, key: str) -> str:
    """The key together with its owner, since different callers may use the same key."""
    return f"{caller.owner}:{key}" if key else ""
