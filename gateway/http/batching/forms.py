"""Reads a multipart form as a stream; only the current chunk is in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from baton.core.errors import InvalidRequest

MAX_PARTS = 32


@dataclass(frozen=True, slots=True)
class FormPart:
    """The beginning of a part; its content follows, up to the next FormPart."""

    name: str
    filename: str | None


class _Reader:
    """Collects the parser's events."""

    def __init__(self, boundary: bytes) -> None:
        self.found: list[FormPart | bytes] = []
        self.is_complete = False
        self._num_parts = 0
        self._name, self._value = bytearray(), bytearray()
        self._disposition = b""
        self.parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._name.extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": lambda data, start, end: self.found.append(data[start:end]),
                "on_end": self._end,
            },
        )

    def _begin(self) -> None:
        self._disposition = b""
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise InvalidRequest(f"a form has at most {MAX_PARTS} parts")

    def _end_header(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        name, filename = options.get(b"name"), options.get(b"filename")
        if name is None:
            raise InvalidRequest("a part of the form has no name")
        self.found.append(FormPart(_text(name), None if filename is None else _text(filename)))

    def _end(self) -> None:
        self.is_complete = True


async def form_parts(
    content_type: str, chunks: AsyncIterator[bytes]
) -> AsyncIterator[FormPart | bytes]:
    """Each part, then its content. Raises InvalidRequest, and what `chunks` raises."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise InvalidRequest(
            "the body must be a form: send multipart/form-data with the fields purpose and file"
        )
    try:
        reader = _Reader(boundary)
        async for chunk in chunks:
            reader.parser.write(chunk)
            found, reader.found[:] = reader.found[:], []
            for one in found:
                yield one
        reader.parser.finalize()
    except FormParserError as error:
        raise InvalidRequest(f"the form cannot be read: {error}") from error
    if not reader.is_complete:
        raise InvalidRequest("the form is cut off: its closing boundary is missing; send it again")


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
