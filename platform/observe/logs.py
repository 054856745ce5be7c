"""The log of every process of a deployment: a record a line, on standard error.

    text   2026-11-22T15:40:01.123Z WARNING decode-ab12: no stream to ... (baton.engine.engine)
             | the lines of a traceback follow behind bars
    json   {"ts": "2026-..", "level": "WARNING", "source": "decode-ab12", "logger": "baton...",
            "message": "...", "request_id": "...", "exception": "Traceback ..."}

Ray stores the output of replicas and gateways, and passes it on to `baton serve`, which shows it by
level (`platform/cli/terminal/worker_log.py`).
"""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import msgspec

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

CONTINUED = "  | "
_TEXT = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]{12}Z ([A-Z]+) ([^ :]+): ")
_JSON_START = '{"ts":'
_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Standard attributes of a log record. Others came as `extra` or, with a leading `_`, from Ray."""


class Lines(Protocol):
    """The stream that a log is written to."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> None: ...


class TextLines(logging.Formatter):
    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def format(self, record: logging.LogRecord) -> str:
        first, *more = record.getMessage().splitlines() or [""]
        about = "".join(f", {name} {value}" for name, value in _extras(record).items())
        head = f"{_time(record)} {record.levelname} {self._source}: {first} ({record.name}{about})"
        more += _trace(self, record).splitlines()
        return "\n".join([head, *(CONTINUED + line for line in more)])


class JsonLines(logging.Formatter):
    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": _time(record),
            "level": record.levelname,
            "source": self._source,
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if trace := _trace(self, record):
            line["exception"] = trace
        return msgspec.json.encode(line, enc_hook=str).decode()


def start_log(
    style: LogFormat, source: str, *, level: int = logging.INFO, stream: Lines | None = None
) -> None:
    """Set up logging of this process: Baton's loggers from `level`, libraries' from WARNING.
    `source`: the name of the process. Replaces earlier settings.
    """
    # Serve has replaced sys.stderr.
    handler = logging.StreamHandler(stream or sys.__stderr__)
    handler.setFormatter(JsonLines(source) if style == "json" else TextLines(source))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("baton").setLevel(level)


def set_level(level: LogLevel) -> None:
    """Set the log level of what Baton writes; libraries keep theirs."""
    logging.getLogger("baton").setLevel(level.upper())


def as_info(style: LogFormat, source: str, text: str) -> str:
    """A foreign line as a record of this log, so that a JSON log only has objects."""
    if style == "text":
        return f"({source}) {text}"
    record = logging.LogRecord("print", logging.INFO, "", 0, "%s", (text,), None)
    return JsonLines(source).format(record)


def level_of(line: str) -> int | None:
    """The level of a record's first line, as one of these formats writes it; None: no such line."""
    return logging.getLevelNamesMapping().get(_level_and_source(line)[0])


def source_of(line: str) -> str:
    """The process that wrote a record's first line; empty: no such line."""
    return _level_and_source(line)[1]


def _level_and_source(line: str) -> tuple[str, str]:
    if line.startswith(_JSON_START):
        try:
            record = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return "", ""
        return str(record.get("level", "")), str(record.get("source", ""))
    match = _TEXT.match(line)
    return (match[1], match[2]) if match else ("", "")


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return moment.removesuffix("+00:00") + "Z"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(record).items()
        if name not in _KNOWN and not name.startswith("_") and value != ""
    }
