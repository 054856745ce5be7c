"""Cache points in requests: `cache_control: {"type": "ephemeral", "ttl": "1h"}`, as in Anthropic's
API.

A point stands at the end of a message, of a part of one, or of the prompt; the prefix before it
stays cached for the time to live, counted from each use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from baton.core.errors import InvalidRequest

EPHEMERAL = "ephemeral"
DEFAULT_TTL = "5m"
TTL_S_BY_NAME = {"5m": 300.0, "1h": 3600.0}
MAX_POINTS = 4
"""Cache points of one request."""


class CacheControl(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Keep the prefix before this point in the prefix cache."""

    type: Annotated[str, Meta(extra_json_schema={"enum": [EPHEMERAL]})]
    ttl: Annotated[
        str | None,
        Meta(
            description="For so long after each use. 5m by default.",
            extra_json_schema={"enum": [*TTL_S_BY_NAME, None]},
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class MarkedMessage:
    """A message, or the end of a part of it, behind which a cache point stands."""

    message: int
    """The message's index, counted as templates see them."""
    ttl_s: float
    field: str
    part_end: int | None = None
    """Characters of the message's content up to the point; None: the point is at its end."""


def ttl_s(control: CacheControl, field: str) -> float:
    """Raises InvalidRequest, naming what is wrong below `field`."""
    if control.type != EPHEMERAL:
        raise InvalidRequest(
            f"{field}.type is {control.type!r}; the only one known is {EPHEMERAL}",
            field=f"{field}.type",
        )
    seconds = TTL_S_BY_NAME.get(control.ttl or DEFAULT_TTL)
    if seconds is None:
        known = " or ".join(TTL_S_BY_NAME)
        raise InvalidRequest(f"{field}.ttl is {control.ttl!r}; use {known}", field=f"{field}.ttl")
    return seconds


def read_control(value: Any, field: str) -> CacheControl | None:
    """The cache control of a body that is read as plain values. Raises InvalidRequest."""
    if value is None:
        return None
    try:
        return msgspec.convert(value, CacheControl)
    except msgspec.ValidationError as error:
        example = '{"type": "ephemeral", "ttl": "5m"}'
        raise InvalidRequest(f"{field} must be like {example}: {error}", field=field) from error


def marked(
    control: CacheControl, field: str, message: int, *, part_end: int | None = None
) -> MarkedMessage:
    """Raises InvalidRequest."""
    return MarkedMessage(message, ttl_s(control, field), field, part_end)


def checked_marks(marks: Sequence[MarkedMessage]) -> tuple[MarkedMessage, ...]:
    """Raises InvalidRequest if there are too many."""
    if len(marks) > MAX_POINTS:
        field = marks[MAX_POINTS].field
        raise InvalidRequest(
            f"{field} is one too many: a request has at most {MAX_POINTS} cache points; leave the "
            "others out",
            field=field,
        )
    return tuple(marks)
