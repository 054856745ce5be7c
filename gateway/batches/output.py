"""The output files of a batch: one of answers and one of failures, if there are any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
from msgspec import UNSET, UnsetType

from baton.gateway.batches.disk import Disk
from baton.gateway.batches.files import Files, NewFile

LINES_AT_ONCE = 64


class LineResponse(msgspec.Struct, kw_only=True):
    status_code: int
    request_id: str
    """The request's id, as in the header `x-request-id` of an answer."""
    body: msgspec.Raw
    ignored_fields: Sequence[str] | UnsetType = UNSET
    """Fields without effect, as in the header `x-baton-ignored` of an answer."""


class LineError(msgspec.Struct, kw_only=True):
    code: str
    message: str


class OutputLine(msgspec.Struct, kw_only=True):
    id: str
    custom_id: str
    response: LineResponse | None = None
    error: LineError | None = None
    """Why it did not run."""


def response_line(custom_id: str, response: LineResponse) -> bytes:
    line_id = _id(response.request_id)
    return msgspec.json.encode(OutputLine(id=line_id, custom_id=custom_id, response=response))


def error_line(custom_id: str, request_id: str, error: LineError) -> bytes:
    return msgspec.json.encode(OutputLine(id=_id(request_id), custom_id=custom_id, error=error))


def _id(request_id: str) -> str:
    return f"batch_req_{request_id.removeprefix('batch_')}"


async def write_lines(files: Files, new: NewFile, lines: Iterator[bytes], disk: Disk) -> str | None:
    """The file's id; None if there are no lines. Raises what `lines` raises, StorageFull,
    StorageUnavailable."""

    def some() -> bytes:
        return b"".join(line + b"\n" for line in islice(lines, LINES_AT_ONCE))

    data = await disk(some)
    if not data:
        return None
    async with files.writing(new) as writing:
        while data:
            await writing.write(data)
            data = await disk(some)
    return writing.file_id
