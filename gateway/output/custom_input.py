"""Extracts the text for a custom tool from the JSON that the model writes.

    {"input": "a \\"b\\"\\n"}   --as it comes-->   a "b" and a line's end

If the model writes anything else, all of it is the text. If it was cut before the text began, there
is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from baton.gateway.output.text_reader import Malformed, Parse, TextReader, sendable

KEY = '"input"'
PLAIN = re.compile(r'[^"\\]+')
HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB]")
NUM_UNICODE = len("uFFFF")


class CustomInput:
    def __init__(self, write: Callable[[str], None]) -> None:
        self._reader = TextReader()
        self._parsing = _read_input(self._reader, write)

    def feed(self, text: str) -> None:
        self._reader.feed(text)
        next(self._parsing, None)

    def end(self, *, is_cut: bool = False) -> None:
        """`is_cut`: the output was cut here."""
        self._reader.end(is_cut=is_cut)
        self.feed("")


def _read_input(reader: TextReader, write: Callable[[str], None]) -> Parse[None]:
    try:
        for sign in ("{", KEY, ":", '"'):
            yield from reader.expect(sign)
    except Malformed:
        if reader.is_cut_short:  # before the text began
            return
        reader.rewind()
        yield from reader.copy_until((), write)
        return
    while char := (yield from reader.peek()):
        if run := reader.take_run(PLAIN):
            write(run)
        elif char == '"':
            break
        else:
            write(_readable((yield from _escape(reader))))
        reader.release()
    yield from reader.copy_until((), lambda _: None)


def _escape(reader: TextReader) -> Parse[str]:
    """An escaped UTF-16 unit, with the second half of a surrogate pair."""
    text = yield from _half(reader)
    if HIGH_SURROGATE.match(text) and (yield from reader.take_word("\\u")):
        text += "\\u" + (yield from _taken(reader, NUM_UNICODE - 1))
    return text


def _half(reader: TextReader) -> Parse[str]:
    text = yield from _taken(reader, 2)
    if text == "\\u":
        text += yield from _taken(reader, NUM_UNICODE - 1)
    return text


def _taken(reader: TextReader, num_chars: int) -> Parse[str]:
    """The next `num_chars` characters; fewer at the end."""
    text = ""
    while len(text) < num_chars and (yield from reader.peek()):
        text += reader.take()
    return text


def _readable(escape: str) -> str:
    """The escaped character; empty for an invalid or truncated escape."""
    try:
        return sendable(json.loads(f'"{escape}"'))
    except ValueError:
        return ""
