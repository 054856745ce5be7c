"""Reads traces, gzipped or not, and recognises their format by the first line.

Mooncake   {"timestamp": ms, "input_length", "output_length", "hash_ids": [...]}
sessions   {"session", "turn", "gap_s", "input_length", "output_length", "hash_ids": [...]}
Azure      TIMESTAMP,ContextTokens,GeneratedTokens

Fields that are not named here are passed over; hash_ids may be left out.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from baton.core.errors import InvalidConfig
from baton.platform.traces.ticks import tick_of
from baton.platform.traces.trace import Trace, TraceRequest, block_size_of

GZIP = b"\x1f\x8b"
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

T = TypeVar("T")
Tokens = Annotated[int, msgspec.Meta(ge=1)]


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    input_length: Tokens
    output_length: Tokens
    hash_ids: tuple[int, ...] = ()


class _Arrival(_Line, frozen=True, kw_only=True):
    timestamp: float


class _Turn(_Line, frozen=True, kw_only=True):
    session: str | int
    turn: Annotated[int, msgspec.Meta(ge=0)]
    gap_s: Annotated[float, msgspec.Meta(ge=0)]


class _Kind(msgspec.Struct, frozen=True):
    """Kind of a line of JSON, one of the two."""

    session: str | int | None = None


def read_trace(file: Path) -> Trace:
    """Raises InvalidConfig that names file, line and field, or OSError."""
    try:
        lines = _lines(file)
    except (UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidConfig(f"{file}: {error}; give a text file, gzipped or not") from None
    if not lines:
        raise InvalidConfig(f"{file}: there is no request in it")
    first = lines[0][1]
    if not first.startswith("{"):
        return _open_loop(file, _azure(file, lines))
    kind = _decoded(file, lines[0], msgspec.json.Decoder(_Kind).decode)
    if kind.session is None:
        return _open_loop(file, _mooncake(file, lines))
    requests = _turns(file, lines)
    return Trace(name=file.name, requests=requests, block_size=block_size_of(str(file), requests))


def _lines(file: Path) -> list[tuple[int, str]]:
    """Lines that are not blank, with their numbers."""
    with file.open("rb") as stream:
        is_packed = stream.read(2) == GZIP
    with (
        gzip.open(file, "rt", encoding="utf-8-sig")
        if is_packed
        else file.open(encoding="utf-8-sig") as text
    ):
        return [(number, line.strip()) for number, line in enumerate(text, 1) if line.strip()]


def _open_loop(file: Path, requests: list[TraceRequest]) -> Trace:
    """Shifts the first arrival to 0."""
    arrivals = [request.arrival_s or 0.0 for request in requests]
    first = min(arrivals)
    trace = Trace(
        name=file.name,
        requests=tuple(requests),
        block_size=block_size_of(str(file), requests),
        tick_s=tick_of(arrivals),
    )
    return trace.arriving_at([arrival - first for arrival in arrivals])


def _mooncake(file: Path, lines: Sequence[tuple[int, str]]) -> list[TraceRequest]:
    decode = msgspec.json.Decoder(_Arrival).decode
    found = (_decoded(file, line, decode) for line in lines)
    return [
        TraceRequest(
            arrival_s=line.timestamp / 1e3,
            input_length=line.input_length,
            output_length=line.output_length,
            hash_ids=line.hash_ids,
        )
        for line in found
    ]


def _turns(file: Path, lines: Sequence[tuple[int, str]]) -> tuple[TraceRequest, ...]:
    """Session by session, in the order of their first lines."""
    decode = msgspec.json.Decoder(_Turn).decode
    by_session: dict[str, dict[int, TraceRequest]] = {}
    for line in lines:
        read = _decoded(file, line, decode)
        turns = by_session.setdefault(str(read.session), {})
        if read.turn in turns:
            raise _mistake(file, line[0], f"turn: session {read.session} has {read.turn} already")
        turns[read.turn] = TraceRequest(
            session=str(read.session),
            turn=read.turn,
            gap_s=read.gap_s,
            input_length=read.input_length,
            output_length=read.output_length,
            hash_ids=read.hash_ids,
        )
    return tuple(turns[turn] for turns in by_session.values() for turn in sorted(turns))


def _azure(file: Path, lines: Sequence[tuple[int, str]]) -> list[TraceRequest]:
    rows = zip((number for number, _ in lines), csv.reader(_texts(lines)), strict=False)
    number, header = next(rows)
    if missing := [name for name in AZURE if name not in header]:
        raise _mistake(
            file,
            number,
            f"{missing[0]}: neither JSON nor a header with it; traces are JSON lines of Mooncake"
            " or of sessions, or Azure's CSV",
        )
    found = [_azure_row(file, number, dict(zip(header, row, strict=False))) for number, row in rows]
    if not found:
        raise InvalidConfig(f"{file}: there is no request in it")
    return found


def _texts(lines: Iterable[tuple[int, str]]) -> Iterator[str]:
    return (text for _, text in lines)


def _azure_row(file: Path, number: int, row: dict[str, str]) -> TraceRequest:
    time, *lengths = (row.get(name, "") for name in AZURE)
    try:
        at = datetime.fromisoformat(time)
    except ValueError:
        raise _mistake(file, number, f"TIMESTAMP: {time!r} is no date and time") from None
    for name, length in zip(AZURE[1:], lengths, strict=True):
        if not length.isdecimal() or int(length) < 1:
            raise _mistake(file, number, f"{name}: {length!r} is no number of tokens from 1 on")
    return TraceRequest(
        arrival_s=(at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp(),
        input_length=int(lengths[0]),
        output_length=int(lengths[1]),
    )


def _decoded(file: Path, line: tuple[int, str], decode: Callable[[str], T]) -> T:
    number, text = line
    try:
        return decode(text)
    except msgspec.DecodeError as error:  # names the field
        raise _mistake(file, number, str(error)) from None


def _mistake(file: Path, number: int, what: str) -> InvalidConfig:
    return InvalidConfig(f"{file}, line {number}: {what}")
