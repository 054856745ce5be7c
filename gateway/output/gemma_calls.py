"""Parser of Gemma's calls: nearly JSON, with marks around strings.

<start_function_call>call:f{city:<escape>Paris<escape>,days:3}<end_function_call>   FunctionGemma
<|tool_call>call:f{city:<|"|>Paris<|"|>,days:3}<tool_call|>                         Gemma 4
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from baton.gateway.output.formats import CallFormat, is_call
from baton.gateway.output.json_call import copy_value
from baton.gateway.output.pieces import PieceWriter
from baton.gateway.output.text_reader import Malformed, Parse, TextReader
from baton.gateway.output.typed_arguments import Schemas, TextValue, TypedArguments, value_of

CALL_BEGINS = ("<start_function_call>", "<|tool_call>")
CALL_ENDS = ("<end_function_call>", "<tool_call|>")
RESPONSES = ("<start_function_response>", "<|tool_response>")
"""Marks that end the model's turn."""
QUOTES = ("<escape>", '<|"|>')
OPENINGS = (*QUOTES, "{", "[", '"')
MARKERS = (*CALL_BEGINS, *CALL_ENDS, *QUOTES, *RESPONSES)

NAME = re.compile(r"[^\s<>{}\"]+")
KEY = re.compile(r"[^\s<>{}\[\],:\"]+")
BARE = re.compile(r"[^<>{}\[\],:\"]+")
MAX_DEPTH = 16
"""The most nested levels of a value."""


def gemma(schemas: Schemas) -> CallFormat:
    """`schemas`: of the arguments, by tool."""

    def parse(reader: TextReader, out: PieceWriter) -> Parse[None]:
        markers: tuple[str, ...] = CALL_BEGINS
        while marker := (yield from reader.copy_until(markers, out.content)):
            if marker in CALL_BEGINS:
                if not (yield from is_call(_call(reader, out, schemas), reader, out)):
                    markers = CALL_BEGINS
                    continue
                markers = (*CALL_BEGINS, *CALL_ENDS, *RESPONSES)
            yield from reader.drop_space()

    return parse


def _call(reader: TextReader, out: PieceWriter, schemas: Schemas) -> Parse[None]:
    yield from reader.expect("call:")
    name = yield from _run(reader, NAME)
    yield from reader.expect("{")
    out.start_call(name)
    reader.release()
    arguments = TypedArguments(out, schemas.get(name))
    with _closing(reader, arguments.end):
        yield from _members(reader, arguments)


@contextmanager
def _closing(reader: TextReader, close: Callable[[], None]) -> Iterator[None]:
    """Close the open value on leaving, unless the output was cut."""
    try:
        yield
    except Malformed:
        if not reader.is_cut_short:
            close()
        raise
    close()
    reader.release()


def _members(reader: TextReader, arguments: TypedArguments, depth: int = 0) -> Parse[None]:
    """Read the members of an object whose opening bracket has been read, and its closing one."""
    yield from reader.skip_space()
    if (yield from reader.take_word("}")):
        return
    while True:
        quote = yield from _quote(reader)
        key = yield from _run(reader, KEY)
        if quote:
            yield from reader.expect(quote)
        yield from reader.expect(":")
        arguments.begin(key)
        reader.release()
        yield from _value(reader, arguments, arguments.types(key) if depth == 0 else None, depth)
        yield from reader.skip_space()
        if not (yield from reader.take_word(",")):
            break
    yield from reader.expect("}")


def _value(
    reader: TextReader, arguments: TypedArguments, types: frozenset[str] | None, depth: int
) -> Parse[None]:
    """Read and release a value; null if there is none."""
    try:
        if depth > MAX_DEPTH:
            raise Malformed
        yield from reader.skip_space()
        opening = (yield from _quote(reader)) or (yield from reader.peek())
        bare = "" if opening in OPENINGS else (yield from _run(reader, BARE))
    except Malformed:
        if not reader.is_cut_short:
            arguments.write("null")
        raise
    if opening in QUOTES:
        yield from _text(reader, arguments, opening)
    elif opening == "{":
        reader.take()
        inner = arguments.nested()
        with _closing(reader, inner.end):
            yield from _members(reader, inner, depth + 1)
    elif opening == "[":
        reader.take()
        arguments.write("[")
        reader.release()
        with _closing(reader, lambda: arguments.write("]")):
            yield from _items(reader, arguments, depth + 1)
    elif opening == '"':
        yield from _json_text(reader, arguments)
    else:
        arguments.write(value_of(bare, types or frozenset()))
        reader.release()


def _items(reader: TextReader, arguments: TypedArguments, depth: int) -> Parse[None]:
    """Read the items of a list whose opening bracket has been read, and its closing one."""
    yield from reader.skip_space()
    if (yield from reader.take_word("]")):
        return
    while True:
        yield from _value(reader, arguments, None, depth)
        yield from reader.skip_space()
        if not (yield from reader.take_word(",")):
            break
        arguments.write(", ")
        reader.release()
    yield from reader.expect("]")


def _text(reader: TextReader, arguments: TypedArguments, quote: str) -> Parse[None]:
    value = TextValue(arguments)
    with _closing(reader, value.end):
        if not (yield from reader.copy_until((quote,), value.feed, keeps_space=True)):
            yield from reader.peek()
            raise Malformed


def _json_text(reader: TextReader, arguments: TypedArguments) -> Parse[None]:
    def write(text: str) -> None:
        arguments.write(text)
        reader.release()

    try:
        yield from copy_value(reader, write)
    except Malformed:
        if not reader.is_cut_short:
            arguments.write('"')
        raise


def _quote(reader: TextReader) -> Parse[str]:
    """The mark of a string, if one comes next; it is read."""
    for quote in QUOTES:
        if (yield from reader.take_word(quote)):
            return quote
    return ""


def _run(reader: TextReader, pattern: re.Pattern[str]) -> Parse[str]:
    yield from reader.skip_space()
    text = ""
    while (yield from reader.peek()) and (run := reader.take_run(pattern)):
        text += run
    if not text.strip():
        raise Malformed
    return text.strip()
