"""Server-sent events: what is sent is what a reader of the standard's grammar finds."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from baton.gateway.http.sending import sse

texts = st.text(st.characters(codec="utf-8"), max_size=30)
contents = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
LINE_ENDS = re.compile(r"\r\n|\n|\r")


def read_events(data: bytes) -> list[tuple[str, str]]:
    """(name, data) of each event, as WHATWG's HTML standard says."""
    events: list[tuple[str, str]] = []
    name, lines = "", list[str]()
    for line in LINE_ENDS.split(data.decode()):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if lines:
                events.append((name, "\n".join(lines)))
            name, lines = "", []
        elif field == "event":
            name = value
        elif field == "data":
            lines.append(value)
    return events


@given(st.lists(st.tuples(st.sampled_from(["", "response.created"]), contents), max_size=5))
def test_any_content_survives(events: list[tuple[str, Any]]) -> None:
    data = b"".join(sse.event(content, name=name or None) for name, content in events)

    found = read_events(data)

    assert [(name, json.loads(text)) for name, text in found] == events


@given(contents, st.integers(1, 7))
def test_the_end_is_told_apart_however_the_bytes_arrive(content: Any, size: int) -> None:
    data = sse.event(content) + sse.DONE
    pieces = [data[start : start + size] for start in range(0, len(data), size)]

    *_, last = read_events(b"".join(pieces))

    assert last == ("", "[DONE]")
