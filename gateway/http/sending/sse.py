"""Server-sent events, as bytes."""

from __future__ import annotations

import msgspec

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # otherwise nginx would buffer events
]
DONE = b"data: [DONE]\n\n"


def event(content: object, *, name: str | None = None) -> bytes:
    """One event. JSON has no line breaks, so one `data` line is enough."""
    data = b"data: " + msgspec.json.encode(content) + b"\n\n"
    return data if name is None else f"event: {name}\n".encode() + data
