"""Where in a text of tokens each pair of tokens stands, kept as the text grows.

    |<- sorted ->|<- sorted ->| ... |<- counted ->|      pieces of the text, the oldest first
       at most PIECE pairs             at most TAIL

A sorted piece is two arrays, pairs and places, searched by halves: 12 bytes a token, and 16,384
tokens in 4 ms. The last few tokens are in a table, which is quick to add to.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from baton.engine.request.request import Request

PIECE = 16_384
"""Tokens that are sorted at once, of all texts of a step together."""
TAIL = 1024
"""Tokens in the table, at most."""


@dataclass(frozen=True, slots=True)
class _Piece:
    start: int
    """The place behind its first pair."""
    pairs: array[int]  # int64
    places: array[int]  # int32
    """Where the token behind each stands, in order among equal pairs."""

    def behind(self, pair: int, max_places: int) -> array[int]:
        """The last of them."""
        first, stop = bisect_left(self.pairs, pair), bisect_right(self.pairs, pair)
        return self.places[max(first, stop - max_places) : stop]


class TokenIndex:
    """What `extend` costs is what is new of the text."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._pieces: list[_Piece] = []
        self._tail: dict[int, list[int]] = {}
        """By pair: where the token behind it stands, in order."""
        self._tail_start = 2
        """The place behind the first pair of it; no pair stands before place 2."""

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        text, tail = self.tokens, self._tail
        text.extend(tokens)
        if len(text) - self._tail_start > TAIL:
            self._sort()
            return
        for place in range(max(2, len(text) - len(tokens) + 1), len(text) + 1):
            tail.setdefault(_key(text[place - 2], text[place - 1]), []).append(place)

    def behind(self, pair: tuple[int, int], max_places: int) -> list[int]:
        """The places behind the last occurrences of `pair` that a token stands in, latest first."""
        key, last = _key(*pair), len(self.tokens)
        found = [place for place in reversed(self._tail.get(key, ())) if place < last]
        for piece in reversed(self._pieces):
            if len(found) >= max_places:
                break
            places = piece.behind(key, max_places + 1)
            found += [place for place in reversed(places) if place < last]
        return found[:max_places]

    def _sort(self) -> None:
        """All behind the pieces becomes more of them; a small one before is sorted with it."""
        start = self._tail_start
        if self._pieces and len(self.tokens) - self._pieces[-1].start < PIECE:
            start = self._pieces.pop().start
        for first in range(start, len(self.tokens) + 1, PIECE):
            stop = min(first + PIECE, len(self.tokens) + 1)
            self._pieces.append(_sorted(self.tokens[first - 2 : stop - 1], first))
        self._tail.clear()
        self._tail_start = len(self.tokens) + 1


def _sorted(text: Sequence[int], start: int) -> _Piece:
    """`start`: the place behind the first two tokens of `text`."""
    tokens = torch.tensor(text, dtype=torch.int64)
    pairs, order = torch.sort((tokens[:-1] << 32) | (tokens[1:] & 0xFFFFFFFF), stable=True)
    return _Piece(start, array("q", pairs.tolist()), array("i", (order + start).tolist()))


class RequestTexts:
    """The tokens of each request: long ones piece by piece, so that no step waits for all."""

    def __init__(self) -> None:
        self._indexes: dict[Request, TokenIndex] = {}

    def follow(self, requests: Iterable[Request]) -> list[TokenIndex]:
        """An index each; one of a long text may not know all of it yet."""
        left = PIECE
        found = []
        for request in requests:
            index = self._indexes.setdefault(request, TokenIndex())
            num_new = len(request.tokens) - len(index)
            if num_new > TAIL:
                num_new = min(num_new, left)
                left -= num_new
            if num_new:
                index.extend(request.tokens[len(index) : len(index) + num_new])
            found.append(index)
        return found

    def forget(self, request: Request) -> None:
        self._indexes.pop(request, None)


def common_suffix(text: Sequence[int], end: int, other: Sequence[int], limit: int) -> int:
    """How many tokens before `end` of `text` are those at the end of `other`, up to `limit`."""
    limit, last = min(limit, end, len(other)), len(other)
    length = 0
    while length < limit and text[end - 1 - length] == other[last - 1 - length]:
        length += 1
    return length


def _key(first: int, second: int) -> int:
    return (first << 32) | (second & 0xFFFFFFFF)
