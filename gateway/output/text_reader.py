"""Text that comes in pieces, read by generators that yield when they need more of it.

    released | read, may be given back | not yet read | not yet here
             ^ start                   ^ next

A parse sees one text however it was cut, so what it makes of it cannot depend on the cuts.
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
"""Characters at the end of a text that was cut, from which on they are more likely a marker's."""
MIN_CUT_WORD = 6
"""The same, of a marker that begins like a word, behind other text: many words end in `fun`."""
MAX_HELD = 65_536
"""Characters that can be read before it is known what they are."""


def sendable(text: str) -> str:
    """Half of a pair of surrogates, which JSON can spell, has no UTF-8: U+FFFD stands for it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Malformed(Exception):
    """The text does not go on as it began."""


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
        """More was wanted than there is, of a text that would have gone on."""
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
        """No more text comes. `is_cut`: it would have gone on. `at_stop`: what came next was a stop
        string, so that half a marker at the end is text."""
        self._is_complete = True
        self._is_cut = is_cut
        self._may_cut_marker = is_cut and not at_stop

    def release(self) -> None:
        """What has been read is dealt with."""
        self._start = self._next

    @property
    def held(self) -> str:
        """What has been read and not released."""
        return self._text[self._start : self._next]

    def give_back(self, write: Callable[[str], None]) -> None:
        """Write what has been read and not released, which is then released."""
        text = self.held
        self.rewind()
        write(text)
        self._next += len(text)
        self.release()

    def drop_rest(self) -> None:
        """Drop the rest of what has come."""
        self._next = len(self._text)
        self.release()

    def rewind(self) -> None:
        """Read again from what was released last."""
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
        """As much as is here of a run of characters, each of which matches `pattern` (`[...]+`).

        "" if there is none: then the next character is not one of them, or not here yet.
        """
        match = pattern.match(self._text, self._next, self._start + MAX_HELD)
        if match is None:
            return ""
        self._next = match.end()
        return match[0]

    def skip_space(self) -> Parse[None]:
        while (yield from self.peek()) and self._text[self._next] in SPACE:
            self._next += 1

    def peek_behind_space(self) -> Parse[str]:
        """The next character behind white space, which is read; "" at the end.

        "" also if that space is longer than what can be held, which is then to be read again.
        """
        try:
            yield from self.skip_space()
            return (yield from self.peek())
        except Malformed:
            self.rewind()
            return ""

    def drop_space(self) -> Parse[None]:
        """What follows a marker: read, and released."""
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
        """Read `word`, after white space. Raises Malformed."""
        yield from self.skip_space()
        if not (yield from self.take_word(word)):
            raise Malformed

    def copy_until(
        self, markers: Sequence[str], write: Callable[[str], None], *, keeps_space: bool = False
    ) -> Parse[str]:
        """Write the text up to the first marker, which is read (not released) and returned.
        `position` is where a text begins while it is written.

        White space in front of the marker goes with it, unless `keeps_space`. At the end, all is
        written, but for a marker that the limit of the output cut; returns "".
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
    """How many of the last characters may be the beginning of a marker, or the space before it."""
    if not markers:
        return 0
    num_marker = _num_of_marker(text, begin, markers)
    before = text[begin : len(text) - num_marker]
    return num_marker + len(before) - len(text_of(before))


def _num_of_marker(text: str, begin: int, markers: Sequence[str]) -> int:
    """How many of the last characters may be the beginning of a marker."""
    num_marker = 0
    for marker in markers:
        for length in range(min(len(marker) - 1, len(text) - begin), num_marker, -1):
            if text.endswith(marker[:length]):
                num_marker = length
                break
    return num_marker


def _without_space(text: str) -> str:
    return text[:-MAX_MARKUP_SPACE] + text[-MAX_MARKUP_SPACE:].rstrip(SPACE)
