"""The text that a custom tool is given, out of the JSON that the model writes for it.

    {"input": "a \\"b\\"\\n"}   --as it comes-->   a "b" and a line's end

A model that writes anything else is taken at its word: all of it is the text. Of what was cut
before the text began nothing is.
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
        """`is_cut`: it would have gone on."""
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
    """The escaped UTF-16 unit, with the second half where it is one of two."""
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
    """Fewer at the end."""
    text = ""
    while len(text) < num_chars and (yield from reader.peek()):
        text += reader.take()
    return text


def _readable(escape: str) -> str:
    """What the escape means; one that means nothing, or was cut, is nothing that can be shown."""
    try:
        return sendable(json.loads(f'"{escape}"'))
    except ValueError:
        return ""
