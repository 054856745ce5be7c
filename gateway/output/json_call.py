"""Parser of tool calls in JSON: {"name": "f", "arguments": {...}}.

    {  "name" : "f" ,  "arguments" :  {   ...   }  }
    held                              | as it comes

A call starts when its name is known and its arguments begin. From then on its text is passed on as
written, valid or not; before that, text that turns out to be no call is given back unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from baton.gateway.output.pieces import PieceWriter
from baton.gateway.output.text_reader import Malformed, Parse, TextReader, sendable

ARGUMENT_KEYS = ("arguments", "parameters")
NO_ARGUMENTS = "{}"

IN_STRING = re.compile(r'[^"\\]+')
OUT_OF_STRING = re.compile(r'[^"{}\[\]<]+')
SCALAR = re.compile(r"[\w.+-]+")
CLOSING = {"{": "}", "[": "]"}


def read_call(
    reader: TextReader, out: PieceWriter, accepts: Callable[[str], bool] = bool
) -> Parse[None]:
    """Read one call whose name `accepts` approves. Raises Malformed."""
    yield from reader.expect("{")
    name = arguments = ""
    while True:
        key = yield from _read_string(reader)
        yield from reader.expect(":")
        yield from reader.skip_space()
        if key == "name" and not name:
            name = yield from _read_string(reader)
            if not accepts(name):
                raise Malformed
        elif key in ARGUMENT_KEYS and not arguments:
            arguments = yield from _read_arguments(reader, out, name)
        else:
            yield from copy_value(reader, lambda _: None)
        yield from reader.skip_space()
        if not (yield from reader.take_word(",")):
            break
    yield from reader.expect("}")
    if not name:
        raise Malformed
    if arguments != STREAMED:
        out.start_call(name)
        out.arguments(arguments or NO_ARGUMENTS)
    reader.release()


STREAMED = "streamed"


def _read_arguments(reader: TextReader, out: PieceWriter, name: str) -> Parse[str]:
    """Read the arguments: streamed if the name is known, else returned."""
    if not (name and (yield from reader.peek()) == "{"):
        pieces: list[str] = []
        yield from copy_value(reader, pieces.append)
        return _as_object("".join(pieces))
    out.start_call(name)
    yield from copy_arguments(reader, out)
    return STREAMED


def copy_arguments(reader: TextReader, out: PieceWriter) -> Parse[None]:
    """Copy an object to the arguments of the last started call."""

    def write(text: str) -> None:
        out.arguments(text)
        reader.release()

    reader.release()
    yield from copy_value(reader, write)


def _as_object(text: str) -> str:
    """The arguments as an object: some models write null for none, or a string of the object's
    JSON."""
    try:
        value = json.loads(text)
        if value is None:
            return NO_ARGUMENTS
        if isinstance(value, str):
            text, value = sendable(value), json.loads(value)
    except (ValueError, RecursionError) as error:
        raise Malformed from error
    if not isinstance(value, dict):
        raise Malformed
    return text


def copy_value(reader: TextReader, write: Callable[[str], None]) -> Parse[None]:
    """Copy one JSON value, whose brackets and strings mark its end. Raises Malformed."""
    closing: list[str] = []
    while True:
        char = yield from reader.peek()
        if char == '"':
            yield from _copy_string(reader, write)
        elif char in CLOSING:
            closing.append(CLOSING[char])
            write(reader.take())
        elif closing and char == closing[-1]:
            closing.pop()
            write(reader.take())
        elif closing and (run := reader.take_run(OUT_OF_STRING)):
            write(run)
        elif closing or not (run := reader.take_run(SCALAR)):
            raise Malformed  # a bracket too many, a marker, or the end
        else:
            yield from _copy_scalar(reader, run, write)
        if not closing:
            return


def _copy_scalar(reader: TextReader, run: str, write: Callable[[str], None]) -> Parse[None]:
    while run:
        write(run)
        yield from reader.peek()
        run = reader.take_run(SCALAR)


def _copy_string(reader: TextReader, write: Callable[[str], None]) -> Parse[None]:
    write(reader.take())
    while True:
        char = yield from reader.peek()
        if not char:
            raise Malformed
        if run := reader.take_run(IN_STRING):
            write(run)
            continue
        reader.take()
        if char == "\\":
            escaped = yield from reader.peek()
            if not escaped:
                raise Malformed
            char += reader.take()
        write(char)
        if char == '"':
            return


def _read_string(reader: TextReader) -> Parse[str]:
    yield from reader.skip_space()
    if (yield from reader.peek()) != '"':
        raise Malformed
    pieces: list[str] = []
    yield from _copy_string(reader, pieces.append)
    try:
        return sendable(json.loads("".join(pieces)))
    except ValueError as error:
        raise Malformed from error
