"""Parser of calls in which each argument has its own tags, without quotes.

    qwen3_coder   <tool_call>   <function=f>   <parameter=k>   value   </parameter> ...
    glm           <tool_call>f   <arg_key>k</arg_key>   <arg_value>value</arg_value> ...
    deepseek_v32  DSML_CALLS  DSML_CALL"f">  DSML_KEY"k" string="true">value DSML_KEY_END ...

Strings are written bare and streamed; other values are JSON. The tool's schema says which, or the
model itself (deepseek_v32). White space between tags is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from baton.gateway.output.formats import HERMES_BEGIN, HERMES_END, CallFormat, is_call
from baton.gateway.output.pieces import PieceWriter
from baton.gateway.output.text_reader import Malformed, Parse, TextReader
from baton.gateway.output.typed_arguments import (
    TEXT,
    Schemas,
    TextValue,
    TypedArguments,
    value_of,
)

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"
DSML = "\uff5cDSML\uff5c"
DSML_CALLS = (f"<{DSML}function_calls>", f"<{DSML}tool_calls>")
DSML_CALLS_END = (f"</{DSML}function_calls>", f"</{DSML}tool_calls>")
DSML_CALL, DSML_CALL_END = f"<{DSML}invoke name=", f"</{DSML}invoke>"
DSML_KEY, DSML_KEY_END = f"<{DSML}parameter name=", f"</{DSML}parameter>"
MARKERS = (KEY, KEY_END, VALUE, VALUE_END, DSML)
ENDS = (FUNCTION_END, PARAMETER_END, DSML_KEY_END, DSML_CALL_END, *DSML_CALLS_END)
"""End tags of a call and its parts that are not among the markers."""

FUNCTION_NAME = re.compile(r"[^\s<>\"]+")
ARGUMENT_NAME = re.compile(r"[^<>\"\n]+")


def qwen3_coder(schemas: Schemas) -> CallFormat:
    def call(reader: TextReader, out: PieceWriter, marker: str) -> Parse[None]:
        if marker != FUNCTION:
            yield from reader.expect(FUNCTION)
        name = yield from _name(reader, FUNCTION_NAME)
        if marker == FUNCTION and name not in schemas:
            raise Malformed  # prose about calls
        yield from reader.expect(">")
        with _arguments(reader, out, name, schemas.get(name)) as arguments:
            yield from reader.drop_space()
            while (yield from _opens(reader, PARAMETER, FUNCTION_END, HERMES_END)):
                key = yield from _name(reader, ARGUMENT_NAME)
                yield from reader.expect(">")
                yield from reader.take_word("\n")
                # The model may forget an end tag and begin the next one.
                ends = (PARAMETER_END, PARAMETER, FUNCTION_END)
                types = arguments.types(key)
                end = yield from _copy_value(reader, arguments, key, types, ends, is_on_lines=True)
                if end == PARAMETER_END:
                    yield from reader.drop_space()
                else:
                    reader.rewind()

    return _any_calls(call, (HERMES_BEGIN, FUNCTION), (HERMES_END,))


def glm(schemas: Schemas) -> CallFormat:
    def call(reader: TextReader, out: PieceWriter, _: str) -> Parse[None]:
        name = yield from _name(reader, FUNCTION_NAME)
        yield from reader.skip_space()
        is_over = not (yield from reader.peek()) and not reader.is_cut_short
        # The end tag may be a stop string; a name that is no tool's is prose about calls.
        has_more = not (is_over and name in schemas) and (
            yield from _opens(reader, KEY, HERMES_END)
        )
        with _arguments(reader, out, name, schemas.get(name)) as arguments:
            while has_more:
                key = yield from _name(reader, ARGUMENT_NAME)
                yield from reader.expect(KEY_END)
                yield from reader.expect(VALUE)
                # The model may forget an end tag, and begin the next argument or end the call.
                ends = (VALUE_END, KEY, HERMES_END)
                end = yield from _copy_value(reader, arguments, key, arguments.types(key), ends)
                if end == VALUE_END:
                    yield from reader.drop_space()
                else:
                    reader.rewind()
                has_more = yield from _opens(reader, KEY, HERMES_END)

    return _any_calls(call, (HERMES_BEGIN,), (HERMES_END,))


def _dsml_call(reader: TextReader, out: PieceWriter, marker: str) -> Parse[None]:
    if marker != DSML_CALL:
        yield from reader.expect(DSML_CALL)
    yield from reader.expect('"')
    name = yield from _name(reader, FUNCTION_NAME)
    yield from reader.expect('">')
    with _arguments(reader, out, name) as arguments:
        yield from reader.drop_space()
        while (yield from _opens(reader, DSML_KEY, DSML_CALL_END)):
            yield from reader.expect('"')
            key = yield from _name(reader, ARGUMENT_NAME)
            yield from reader.expect('"')
            yield from reader.expect('string="')
            is_text = (yield from _name(reader, ARGUMENT_NAME)) == "true"
            yield from reader.expect('">')
            types = TEXT if is_text else frozenset[str]()
            yield from _copy_value(reader, arguments, key, types, (DSML_KEY_END,))
            yield from reader.drop_space()


def _any_calls(
    call: Callable[[TextReader, PieceWriter, str], Parse[None]],
    begins: Sequence[str],
    ends: Sequence[str],
) -> CallFormat:
    """Read any number of calls, with text around them. `call` gets the marker after which it
    reads."""

    def parse(reader: TextReader, out: PieceWriter) -> Parse[None]:
        markers = begins
        while marker := (yield from reader.copy_until(markers, out.content)):
            if marker in begins and not (
                yield from is_call(call(reader, out, marker), reader, out)
            ):
                markers = begins
                continue
            markers = (*begins, *ends)
            yield from reader.drop_space()

    return parse


deepseek_v32 = _any_calls(_dsml_call, (*DSML_CALLS, DSML_CALL), DSML_CALLS_END)


@contextmanager
def _arguments(
    reader: TextReader, out: PieceWriter, name: str, schema: Mapping[str, Any] | None = None
) -> Iterator[TypedArguments]:
    """Read the arguments of a call. If it breaks off, those read so far are closed; if the output
    was cut, they stay open."""
    out.start_call(name)
    reader.release()
    arguments = TypedArguments(out, schema)
    try:
        yield arguments
    except Malformed:
        if not reader.is_cut_short:
            arguments.end()
        raise
    arguments.end()
    reader.release()


def _copy_value(
    reader: TextReader,
    arguments: TypedArguments,
    key: str,
    types: frozenset[str],
    ends: Sequence[str],
    *,
    is_on_lines: bool = False,
) -> Parse[str]:
    """Copy a value up to one of `ends`, which is read and returned. Raises Malformed if none comes.
    `is_on_lines`: the last line break is not part of the value.
    """
    arguments.begin(key)
    pieces: list[str] = []
    text_value = TextValue(arguments) if types == TEXT else None
    write = pieces.append if text_value is None else text_value.feed
    last = _LastBreak(write) if is_on_lines else None
    end = yield from reader.copy_until(ends, last.feed if last else write, keeps_space=True)
    if not end:
        if last:
            write(last.held)
        yield from reader.peek()
    if reader.is_cut_short:
        arguments.write("".join(pieces))
    elif text_value is not None:
        text_value.end()
    else:
        arguments.write(value_of("".join(pieces), types))
    if not end:
        raise Malformed
    return end


class _LastBreak:
    """Holds back a line break until something follows it."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self.held = ""

    def feed(self, text: str) -> None:
        if text:
            text = self.held + text
            self.held = "\n" if text.endswith("\n") else ""
            self._write(text.removesuffix("\n"))


def _opens(reader: TextReader, opening: str, *closings: str) -> Parse[bool]:
    """Read `opening`, or one of `closings`; whether it was `opening`. Raises Malformed."""
    yield from reader.skip_space()
    if (yield from reader.take_word(opening)):
        return True
    for closing in closings:
        if (yield from reader.take_word(closing)):
            return False
    raise Malformed


def _name(reader: TextReader, pattern: re.Pattern[str]) -> Parse[str]:
    yield from reader.skip_space()
    name = ""
    while (yield from reader.peek()) and (run := reader.take_run(pattern)):
        name += run
    if not (name := name.strip()):
        raise Malformed
    return name
