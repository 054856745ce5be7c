"""Parser of OpenAI's harmony format (GPT-OSS): messages on channels.

    <|channel|>analysis<|message|> ... <|end|>                                reasoning
    <|start|>assistant<|channel|>commentary<|message|> ... <|end|>            what it tells the user
    <|start|>assistant<|channel|>final<|message|> ... <|return|>              the answer
    <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{...}<|call|>
    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>       the same

The prompt ends with <|start|>assistant, so an output begins after that. Text without a header is an
answer, which the caller may have begun.
"""

from __future__ import annotations

import re

from baton.gateway.output.formats import CallFormat
from baton.gateway.output.pieces import PieceWriter
from baton.gateway.output.text_reader import Malformed, Parse, TextReader

START, CHANNEL, CONSTRAIN = "<|start|>", "<|channel|>", "<|constrain|>"
MESSAGE, END, CALL, RETURN = "<|message|>", "<|end|>", "<|call|>", "<|return|>"
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, END)
"""Markers that the parser sees. CALL and RETURN end the output and are hidden, like any end
token."""
ENDS = (END, START, CALL, RETURN)
"""The ends of a message; the start of the next ends it, too."""
MAX_HEADER = 256
HEADER = re.compile(
    rf"(?:{re.escape(START)})?(?:assistant)?(?: ?to=(?P<early>[^\s<]+))?"
    rf"(?:{re.escape(CHANNEL)}(?P<channel>analysis|commentary|final))?"
    rf"(?: ?to=(?P<late>[^\s<]+))?"
    rf"(?: ?(?:{re.escape(CONSTRAIN)})?(?:json|code))? ?{re.escape(MESSAGE)}"
)


def analysis(reader: TextReader, out: PieceWriter) -> Parse[int]:
    """Read the reasoning at the beginning; return where it ends."""
    end = 0
    while header := (yield from _header(reader)):
        if header["channel"] != "analysis":
            reader.rewind()
            break
        yield from reader.copy_until(ENDS, out.reasoning)
        end = reader.position
        reader.release()
    return end


def messages(reader: TextReader, out: PieceWriter) -> Parse[None]:
    """Read all messages, including calls."""
    yield from _messages(reader, out, has_calls=True)


def answers(reader: TextReader, out: PieceWriter) -> Parse[None]:
    """Read all messages where there are no tools: what looks like a call is content."""
    yield from _messages(reader, out, has_calls=False)


def in_answer(calls: CallFormat) -> CallFormat:
    """Read calls that a grammar enforces in place of the answer."""

    def parse(reader: TextReader, out: PieceWriter) -> Parse[None]:
        yield from _header(reader)
        yield from reader.drop_space()
        yield from calls(reader, out)

    return parse


def _messages(reader: TextReader, out: PieceWriter, *, has_calls: bool) -> Parse[None]:
    while True:
        header = yield from _header(reader)
        if header is None:
            if not (yield from reader.copy_until(ENDS, out.content)):
                return
            reader.release()
            continue
        called = header["early"] or header["late"]
        if has_calls and called and called != "assistant":
            out.start_call(called.removeprefix("functions."))
            write = out.arguments
        elif header["channel"] == "analysis":
            write = out.reasoning
        else:
            write = out.content
        yield from reader.drop_space()
        yield from reader.copy_until(ENDS, write)
        reader.release()


def _header(reader: TextReader) -> Parse[re.Match[str] | None]:
    """Read (not release) the header of a message; None if there is none."""
    text = ""
    try:
        while not text.endswith(MESSAGE):
            char = yield from reader.peek()
            if not char or len(text) == MAX_HEADER or not _may_begin(text + char):
                raise Malformed
            text += reader.take()
    except Malformed:
        reader.rewind()
        return None
    header = HEADER.fullmatch(text)
    if header is None:
        reader.rewind()
    return header


def _may_begin(text: str) -> bool:
    """Whether the text can be the beginning of a header; otherwise it is an answer, and not held
    back."""
    begins = (START, CHANNEL, "assistant", " to=", "to=")
    return any(text.startswith(begin[: len(text)]) for begin in begins)
