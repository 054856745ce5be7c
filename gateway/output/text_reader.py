"""A reader for text in pieces; parsers are generators that yield when they need more.

    released | read, may be given back | not yet read | not yet here
             ^ start                   ^ next

A parser sees one continuous text, so its result cannot depend on how the text was split.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
Parse = Generator[None, None, T]
"""Yields when it needs more text; returns a T."""

SPACE = " \t\r\n"
MAX_MARKUP_SPACE = 256
"""White space next to a marker belongs to it; of longer runs, the rest is text."""
MIN_CUT_MARKER = 2
"""Characters at the end of a cut text from which on they count as the beginning of a marker."""
MIN_CUT_WORD = 6
"""The same for a marker that begins like a word, after other text: many words end in `fun`."""
MAX_HELD = 65_536
"""The most characters held back while undecided."""


def sendable(text: str) -> str:
    """The text with U+FFFD for unpaired surrogates, which JSON can spell but UTF-8 cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Malformed(Exception):
    """The text does not fit the format that it began."""


class TextReader:
    def __init__(self) -> None:
        self._text = ""
        self._start = 0
        self._next = 0
        self._num_dropped = 0
        self._is_complete = False
        self._is_cut = False
        self._may_cut_marker = False
        self._has_run_out = False

    @property
    def is_cut_short(self) -> bool:
        """Whether the parser needed more text than a cut output has."""
        return self._is_cut and self._has_run_out

    @property
    def position(self) -> int:
        """How many characters have been read."""
        return self._num_dropped + self._next

    def feed(self, text: str) -> None:
        self._num_dropped += self._start
        self._text = self._text[self._start :] + text
        self._next -= self._start
        self._start = 0

    def end(self, *, is_cut: bool = False, at_stop: bool = False) -> None:
        """No more text comes. `is_cut`: the output was cut. `at_stop`: by a stop string, so that
        half a marker at the end is text."""
        self._is_complete = True
        self._is_cut = is_cut
        self._may_cut_marker = is_cut and not at_stop

    def release(self) -> None:
        """Release the text read so far: it has been handled."""
        self._start = self._next

    @property
    def held(self) -> str:
        """The text read and not released."""
        return self._text[self._start : self._next]

    def give_back(self, write: Callable[[str], None]) -> None:
        """Write the text read and not released, and release it."""
        text = self.held
        self.rewind()
        write(text)
        self._next += len(text)
        self.release()

    def drop_rest(self) -> None:
        """Drop all text that has come."""
        self._next = len(self._text)
        self.release()

    def rewind(self) -> None:
        """Go back to the end of the released text."""
        self._next = self._start
        self._has_run_out = False

    def peek(self) -> Parse[str]:
        """The next character; "" at the end. Raises Malformed if too much is held."""
        if self._next - self._start >= MAX_HELD:
            raise Malformed
        while self._next == len(self._text):
            if self._is_complete:
                self._has_run_out = True
                break
            yield
        return self._text[self._next : self._next + 1]

    def take(self) -> str:
        """The character that was peeked."""
        self._next += 1
        return self._text[self._next - 1]

    def take_run(self, pattern: re.Pattern[str]) -> str:
        """The available part of a run of characters that match `pattern` (`[...]+`). "" if the next
        character does not match, or has not arrived.
        """
        match = pattern.match(self._text, self._next, self._start + MAX_HELD)
        if match is None:
            return ""
        self._next = match.end()
        return match[0]

    def skip_space(self) -> Parse[None]:
        while (yield from self.peek()) and self._text[self._next] in SPACE:
            self._next += 1

    def peek_after_space(self) -> Parse[str]:
        """Read white space and peek at the next character; "" at the end. "" also if the space is
        longer than can be held; then call it again.
        """
        try:
            yield from self.skip_space()
            return (yield from self.peek())
        except Malformed:
            self.rewind()
            return ""

    def drop_space(self) -> Parse[None]:
        """Read and release white space after a marker."""
        self.release()
        num_left = MAX_MARKUP_SPACE
        while num_left and (yield from self.peek()) and self._text[self._next] in SPACE:
            self._next += 1
            num_left -= 1
            self.release()

    def take_word(self, word: str) -> Parse[bool]:
        """Read `word` if it comes next."""
        for num_taken, char in enumerate(word):
            if (yield from self.peek()) != char:
                self._next -= num_taken
                return False
            self._next += 1
        return True

    def leads_with(self, word: str) -> Parse[bool]:
        """Read `word` if the text begins with it, or with white space and then it."""
        try:
            yield from self.skip_space()
            if (yield from self.take_word(word)):
                return True
        except Malformed:  # white space without end
            pass
        self.rewind()
        return False

    def expect(self, word: str) -> Parse[None]:
        """Read white space and `word`. Raises Malformed."""
        yield from self.skip_space()
        if not (yield from self.take_word(word)):
            raise Malformed

    def copy_until(
        self, markers: Sequence[str], write: Callable[[str], None], *, keeps_space: bool = False
    ) -> Parse[str]:
        """Write the text up to the first marker, which is read (not released) and returned. While a
        text is written, `position` is its begin. White space before the marker is dropped, unless
        `keeps_space`. At the end all is written, except for a marker that the output limit cut;
        returns "".
        """
        text_of = str if keeps_space else _without_space
        self.release()
        while True:
            marker, begin = _first(self._text, self._next, markers)
            if marker:
                write(text_of(self._text[self._next : begin]))
                self._next = begin
                self.release()
                self._next += len(marker)
                return marker
            if self._is_complete:
                break
            num_held = _num_held(self._text, self._next, markers, text_of)
            end = len(self._text) - num_held
            write(self._text[self._next : end])
            self._next = end
            self.release()
            yield
        rest = self._text[self._next :]
        num_marker = _num_of_marker(rest, 0, markers)
        num_before = len(rest) - num_marker
        is_word = self.position + num_before > 0 and rest[num_before:][:1].isalpha()
        if self._may_cut_marker and num_marker >= (MIN_CUT_WORD if is_word else MIN_CUT_MARKER):
            rest = text_of(rest[:num_before])
        write(rest)
        self.drop_rest()
        return ""


def _first(text: str, begin: int, markers: Sequence[str]) -> tuple[str, int]:
    found = [(text.find(marker, begin), marker) for marker in markers]
    index, marker = min(((i, m) for i, m in found if i >= 0), default=(len(text), ""))
    return marker, index


def _num_held(text: str, begin: int, markers: Sequence[str], text_of: Callable[[str], str]) -> int:
    """Trailing characters that may begin a marker, or be the white space before it."""
    if not markers:
        return 0
    num_marker = _num_of_marker(text, begin, markers)
    before = text[begin : len(text) - num_marker]
    return num_marker + len(before) - len(text_of(before))


def _num_of_marker(text: str, begin: int, markers: Sequence[str]) -> int:
    """Trailing characters that may begin a marker."""
    num_marker = 0
    for marker in markers:
        for length in range(min(len(marker) - 1, len(text) - begin), num_marker, -1):
            if text.endswith(marker[:length]):
                num_marker = length
                break
    return num_marker


def _without_space(text: str) -> str:
    return text[:-MAX_MARKUP_SPACE] + text[-MAX_MARKUP_SPACE:].rstrip(SPACE)
