"""Parsers of the tool-call formats of model families.

    hermes     <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>     any number
    llama3     {"name": ..., "parameters": {...}}; {...}     from the very beginning, or never
    deepseek   CALLS_BEGIN call call ... CALLS_END           where a call is
         V3      CALL_BEGIN function SEPARATOR name\n```json\n{...}\n``` CALL_END
         V3.1    CALL_BEGIN name SEPARATOR {...} CALL_END
    mistral    [TOOL_CALLS]                                any number, or all in one list
         V3      [{"name": ..., "arguments": {...}}, ...]
         V11     name[CALL_ID]id[ARGS]{...}                  the id may be missing
    kimi       KIMI_CALLS call call ... KIMI_CALLS_END
                 KIMI_CALL functions.name:0 KIMI_ARGUMENTS {...} KIMI_CALL_END
    phi        <|tool_call|>[{"name": ..., "arguments": {...}}, ...]<|/tool_call|>
               functools[...]                                the same
    forced     [{"name": ..., "parameters": {...}}, ...]     a grammar makes any model write so

Text around calls is content, and so is text that begins like a call but is none, markers included.
A call that the output limit or a stop string cut at its beginning is dropped. White space between
calls and content is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import partial

from baton.gateway.output.json_call import copy_arguments, read_call
from baton.gateway.output.pieces import PieceWriter
from baton.gateway.output.text_reader import Malformed, Parse, TextReader

CallFormat = Callable[[TextReader, PieceWriter], Parse[None]]

HERMES_BEGIN, HERMES_END = "<tool_call>", "</tool_call>"
LLAMA3_TAG = "<|python_tag|>"
CALLS_BEGIN, CALLS_END = "<\uff5ctool▁calls▁begin\uff5c>", "<\uff5ctool▁calls▁end\uff5c>"
CALL_BEGIN, CALL_END = "<\uff5ctool▁call▁begin\uff5c>", "<\uff5ctool▁call▁end\uff5c>"
SEPARATOR, FENCE = "<\uff5ctool▁sep\uff5c>", "```"
MISTRAL_CALLS, MISTRAL_ID, MISTRAL_ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
KIMI_CALLS, KIMI_CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI_CALL, KIMI_CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
KIMI_ARGUMENTS = "<|tool_call_argument_begin|>"
PHI_CALLS, PHI_CALLS_END, PHI_LIST = "<|tool_call|>", "<|/tool_call|>", "functools["

MARKERS = (
    HERMES_BEGIN,
    HERMES_END,
    LLAMA3_TAG,
    CALLS_BEGIN,
    CALLS_END,
    CALL_BEGIN,
    CALL_END,
    SEPARATOR,
    MISTRAL_CALLS,
    MISTRAL_ID,
    MISTRAL_ARGUMENTS,
    KIMI_CALLS,
    KIMI_CALLS_END,
    KIMI_CALL,
    KIMI_CALL_END,
    KIMI_ARGUMENTS,
    PHI_CALLS,
    PHI_CALLS_END,
)
"""Markers that the parsers see even if they are special tokens, which are hidden otherwise."""

NAME = re.compile(r"[^\s<{`]+")
MISTRAL_NAME = re.compile(r"[^\s\[{]+")
KIMI_NAME = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")


def content(reader: TextReader, out: PieceWriter) -> Parse[None]:
    """All output is content; no calls."""
    yield from reader.copy_until((), out.content)


def hermes(reader: TextReader, out: PieceWriter) -> Parse[None]:
    markers: tuple[str, ...] = (HERMES_BEGIN,)
    while marker := (yield from reader.copy_until(markers, out.content)):
        if marker == HERMES_BEGIN:
            if not (yield from is_call(read_call(reader, out), reader, out)):
                markers = (HERMES_BEGIN,)
                continue
            markers = (HERMES_BEGIN, HERMES_END)
        else:
            markers = (HERMES_BEGIN,)
        yield from reader.drop_space()


def llama3(tools: Collection[str]) -> CallFormat:
    """Without the tag, a call must name one of `tools`: other objects are answers."""

    def parse(reader: TextReader, out: PieceWriter) -> Parse[None]:
        is_tagged = yield from reader.leads_with(LLAMA3_TAG)
        yield from separate_calls(reader, out, tools, is_marked=is_tagged)
        yield from content(reader, out)

    return parse


def separate_calls(
    reader: TextReader, out: PieceWriter, tools: Collection[str], *, is_marked: bool
) -> Parse[None]:
    """Read calls, possibly separated by semicolons. Unless `is_marked`, each must name one of
    `tools`."""
    accepts = bool if is_marked else tools.__contains__
    call = partial(read_call, reader, out, accepts)
    while (yield from is_call(call(), reader, out, is_sure=is_marked or out.num_calls > 0)):
        yield from reader.drop_space()
        if (yield from reader.take_word(";")):
            if not (yield from reader.peek_after_space()):
                break
        elif (yield from reader.peek()) != "{":
            break


def deepseek(reader: TextReader, out: PieceWriter) -> Parse[None]:
    begins = (CALLS_BEGIN, CALL_BEGIN)
    markers: tuple[str, ...] = begins
    while marker := (yield from reader.copy_until(markers, out.content)):
        if marker in begins:
            call = _deepseek_call(reader, out, is_begun=marker == CALL_BEGIN)
            if not (yield from is_call(call, reader, out)):
                markers = begins
                continue
            markers = (*begins, CALL_END, CALLS_END)
        elif marker == CALLS_END:
            markers = begins
        yield from reader.drop_space()


def _deepseek_call(reader: TextReader, out: PieceWriter, *, is_begun: bool) -> Parse[None]:
    if not is_begun:
        yield from reader.expect(CALL_BEGIN)
    name = yield from _read_name(reader)  # or "function"
    yield from reader.expect(SEPARATOR)
    yield from reader.skip_space()
    if (yield from reader.peek()) != "{":
        name = yield from _read_name(reader)
        yield from reader.expect(FENCE)
        yield from reader.take_word("json")
        yield from reader.skip_space()
    yield from _read_object(reader, out, name)
    yield from reader.drop_space()
    if not (yield from reader.take_word(FENCE)) and reader.is_cut_short:
        reader.drop_rest()
    reader.release()


def mistral(reader: TextReader, out: PieceWriter) -> Parse[None]:
    def calls() -> Parse[None]:
        yield from reader.skip_space()
        if (yield from reader.peek()) == "[":
            yield from reader.expect("[")
            yield from _read_list(reader, out)
            return
        name = yield from _read_name(reader, MISTRAL_NAME)
        if (yield from reader.take_word(MISTRAL_ID)):
            yield from _read_name(reader, MISTRAL_NAME)
        yield from reader.take_word(MISTRAL_ARGUMENTS)
        yield from _read_object(reader, out, name)

    while (yield from reader.copy_until((MISTRAL_CALLS,), out.content)):
        if (yield from is_call(calls(), reader, out)):
            yield from reader.drop_space()


def kimi(reader: TextReader, out: PieceWriter) -> Parse[None]:
    def call(marker: str) -> Parse[None]:
        if marker == KIMI_CALLS:
            yield from reader.expect(KIMI_CALL)
        called = yield from _read_name(reader)
        name = KIMI_NAME.fullmatch(called)
        assert name is not None  # any character
        yield from reader.expect(KIMI_ARGUMENTS)
        yield from _read_object(reader, out, name[1])

    begins = (KIMI_CALLS, KIMI_CALL)
    markers: tuple[str, ...] = begins
    while marker := (yield from reader.copy_until(markers, out.content)):
        if marker in begins:
            if not (yield from is_call(call(marker), reader, out)):
                markers = begins
                continue
            markers = (*begins, KIMI_CALL_END, KIMI_CALLS_END)
        yield from reader.drop_space()


def phi(reader: TextReader, out: PieceWriter) -> Parse[None]:
    def calls(marker: str) -> Parse[None]:
        if marker == PHI_CALLS:
            yield from reader.expect("[")
        yield from _read_list(reader, out)

    begins = (PHI_CALLS, PHI_LIST)
    markers: tuple[str, ...] = begins
    while marker := (yield from reader.copy_until(markers, out.content)):
        if marker in begins:
            if not (yield from is_call(calls(marker), reader, out)):
                markers = begins
                continue
            markers = (*begins, PHI_CALLS_END)
        else:
            markers = begins
        yield from reader.drop_space()


def _read_object(reader: TextReader, out: PieceWriter, name: str) -> Parse[None]:
    """Read the arguments of a call whose name has been read."""
    yield from reader.skip_space()
    if (yield from reader.peek()) != "{":
        raise Malformed
    out.start_call(name)
    yield from copy_arguments(reader, out)


def _read_list(reader: TextReader, out: PieceWriter) -> Parse[None]:
    """Read the calls of a list, after its opening bracket."""
    while True:
        yield from read_call(reader, out)
        yield from reader.skip_space()
        if not (yield from reader.take_word(",")):
            break
    yield from reader.expect("]")
    reader.release()


def _read_name(reader: TextReader, pattern: re.Pattern[str] = NAME) -> Parse[str]:
    yield from reader.skip_space()
    name = ""
    while (yield from reader.peek()) and (run := reader.take_run(pattern)):
        name += run
    if not name:
        raise Malformed
    return name


def forced_calls(reader: TextReader, out: PieceWriter) -> Parse[None]:
    """Read a list of calls."""

    def calls() -> Parse[None]:
        yield from reader.expect("[")
        yield from _read_list(reader, out)
        yield from reader.drop_space()

    yield from is_call(calls(), reader, out)
    yield from content(reader, out)


def forced_call(name: str) -> CallFormat:
    """The whole output is the arguments of this call."""

    def parse(reader: TextReader, out: PieceWriter) -> Parse[None]:
        yield from reader.drop_space()
        if (yield from reader.peek()):
            out.start_call(name)
            yield from reader.copy_until((), out.arguments)

    return parse


def forced_text(name: str) -> CallFormat:
    """The whole output is the text for this custom tool."""

    def parse(reader: TextReader, out: PieceWriter) -> Parse[None]:
        if (yield from reader.peek()):
            out.start_call(name)
            yield from reader.copy_until((), out.call_text)

    return parse


def is_call(
    call: Parse[None], reader: TextReader, out: PieceWriter, *, is_sure: bool = True
) -> Parse[bool]:
    """Whether `call` succeeded; if not, the text that it read is content. `is_sure`: it can only be
    a call, so a truncated beginning is dropped.
    """
    try:
        yield from call
    except Malformed:
        if is_sure and reader.is_cut_short:
            reader.drop_rest()
        else:
            reader.give_back(out.content)
        return False
    return True
