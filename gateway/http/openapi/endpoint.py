"""One endpoint of an HTTP port, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

QUERIES: Mapping[str, tuple[dict[str, Any], str]] = {
    "after": ({"type": "string"}, "An id of the list: what comes after it."),
    "after_id": ({"type": "string"}, "An id of the list: what comes after it."),
    "before_id": ({"type": "string"}, "An id of the list: what comes before it."),
    "limit": ({"type": "integer", "minimum": 1}, "So many at most."),
    "order": ({"enum": ["asc", "desc"]}, "By when they were made; `desc` by default."),
    "purpose": ({"enum": ["batch", "batch_output"]}, "Only those."),
}
"""Parameters after a path: their schemas, and what they mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    path: str
    method: str = "get"
    tag: str
    summary: str
    details: str = ""
    body: type | None = None
    answer: type | None = None
    """The type of a JSON answer; None: see `media`."""
    media: str = "application/json"
    status: int = 200
    others: Mapping[int, type] = field(default_factory=dict)
    """Further answers by status, besides errors and the usual one."""
    is_streamed: bool = False
    """Answers with server-sent events if the body asks for `stream`."""
    headers: tuple[str, ...] = ()
    """Headers of requests, besides those that all have: see HEADERS."""
    example: dict[str, Any] | None = None
    """A body."""
    body_media: str = "application/json"
    queries: tuple[str, ...] = ()
    """Parameters after the path: see QUERIES."""
