"""The input of a batch: a JSON object a line, each a request.

{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}

A fault of the file fails the batch; a fault of a body fails its line alone.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from baton.gateway.batches.records import BatchFault

MAX_FAULTS = 100
"""The most faults of one file that are reported."""
MAX_ID_CHARS = 512


class InputLine(msgspec.Struct, kw_only=True):
    custom_id: str
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


class _Named(msgspec.Struct):
    custom_id: str


@dataclass(frozen=True, slots=True)
class LinePlace:
    """Where it stands in the file."""

    line: int
    """The line's number, from 1."""
    offset: int
    num_bytes: int


@dataclass(slots=True)
class InputLines:
    places: list[LinePlace] = field(default_factory=list)
    faults: list[BatchFault] = field(default_factory=list)
    """Faults of the file. With any, no line runs."""


def look_through(path: Path, endpoint: str, max_lines: int) -> InputLines:
    """Blocks. Raises OSError."""
    found, seen, offset = InputLines(), dict[str, int](), 0
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            if number == 1 and text.startswith(BOM_UTF8):
                text, offset = text.removeprefix(BOM_UTF8), len(BOM_UTF8)
            if text.strip():
                place = LinePlace(number, offset, len(text))
                fault = _fault(text, number, endpoint, seen)
                if len(found.places) == max_lines:
                    fault = BatchFault(
                        code="too_many_lines",
                        message=f"a batch has at most {max_lines} lines; make several of it",
                        line=number,
                    )
                    found.faults.append(fault)
                    break
                found.places.append(place)
                if fault is not None:
                    found.faults.append(fault)
                if len(found.faults) == MAX_FAULTS:
                    break
            offset += len(text)
    if not found.places:
        found.faults.append(BatchFault(code="empty_file", message="the file has no lines"))
    return found


def read_line(path: Path, place: LinePlace) -> InputLine:
    """Blocks. Raises OSError."""
    with path.open("rb") as file:
        file.seek(place.offset)
        return msgspec.json.decode(file.read(place.num_bytes), type=InputLine)


def told_id(text: bytes) -> str | None:
    """The custom_id of a line, which need not be a valid request; None if it has none."""
    try:
        return msgspec.json.decode(text.removeprefix(BOM_UTF8), type=_Named).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _fault(text: bytes, number: int, endpoint: str, seen: dict[str, int]) -> BatchFault | None:
    def fault(code: str, message: str, param: str | None = None) -> BatchFault:
        return BatchFault(code=code, message=message, line=number, param=param)

    try:
        line = msgspec.json.decode(text, type=InputLine)
    except msgspec.ValidationError as error:
        return fault("invalid_line", f"{error}; a line has custom_id, method, url and body")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return fault("invalid_json_line", f"this line is not valid JSON: {error}")
    if not 0 < len(line.custom_id) <= MAX_ID_CHARS:
        message = f"custom_id must have 1 to {MAX_ID_CHARS} characters"
        return fault("invalid_custom_id", message, "custom_id")
    if line.url != endpoint:
        message = f"url is {line.url!r}, and the batch's endpoint {endpoint!r}; they must be equal"
        return fault("mismatched_url", message, "url")
    if not bytes(line.body).lstrip().startswith(b"{"):
        return fault("invalid_body", "body must be an object", "body")
    first = seen.setdefault(line.custom_id, number)
    if first != number:
        message = f"custom_id {line.custom_id!r} is that of line {first}, too"
        return fault("duplicate_custom_id", message, "custom_id")
    return None
