"""The positions of each pair of tokens in a text, kept as the text grows.

    |<- sorted ->|<- sorted ->| ... |<- counted ->|      pieces of the text, the oldest first
       at most PIECE pairs             at most TAIL

A sorted piece is two arrays, pairs and positions, searched by bisection: 12 bytes a token, and
16,384 tokens in 4 ms. The last few tokens are in a table, which is quick to append to.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from baton.engine.request.request import Request

PIECE = 16_384
"""Tokens that are sorted at once; of all texts together no step goes over more, unless one text
alone takes that."""
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
        """Places of the token behind each pair of tokens, in order."""
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

    def num_touched(self, num_new: int) -> int:
        """Tokens that `extend` would go over for so many more: all that it would sort."""
        length = len(self.tokens) + num_new
        if length - self._tail_start <= TAIL:
            return num_new
        return max(num_new, length + 1 - self._sorted_from(length))

    def behind(self, pair: tuple[int, int], max_places: int) -> list[int]:
        """The places behind the last occurrences of `pair` that a token stands in, latest first."""
        key, last = _key(*pair), len(self.tokens)
        places_of_tail = self._tail.get(key, ())[-max_places - 1 :]  # one may be at the very end
        found = [place for place in reversed(places_of_tail) if place < last]
        for piece in reversed(self._pieces):
            if len(found) >= max_places:
                break
            places = piece.behind(key, max_places + 1)
            found += [place for place in reversed(places) if place < last]
        return found[:max_places]

    def _sort(self) -> None:
        """All behind the pieces becomes more of them; a small one before is sorted with it."""
        start = self._sorted_from(len(self.tokens))
        if start < self._tail_start:
            self._pieces.pop()
        for first in range(start, len(self.tokens) + 1, PIECE):
            stop = min(first + PIECE, len(self.tokens) + 1)
            self._pieces.append(_sorted(self.tokens[first - 2 : stop - 1], first))
        self._tail.clear()
        self._tail_start = len(self.tokens) + 1

    def _sorted_from(self, length: int) -> int:
        """Where the first piece begins that is made when the text is that long."""
        if self._pieces and length - self._pieces[-1].start < PIECE:
            return self._pieces[-1].start
        return self._tail_start


def _sorted(text: Sequence[int], start: int) -> _Piece:
    """`start`: the place behind the first two tokens of `text`."""
    tokens = torch.tensor(text, dtype=torch.int64)
    pairs, order = torch.sort((tokens[:-1] << 32) | (tokens[1:] & 0xFFFFFFFF), stable=True)
    return _Piece(start, array("q", pairs.tolist()), array("i", (order + start).tolist()))


class RequestTexts:
    """The tokens of each request: a step goes over so many of all, and whose turn it is not waits.

    Who waits comes before all others in the next step, in turn: nobody waits for all of another's.
    """

    def __init__(self) -> None:
        self._indexes: dict[Request, TokenIndex] = {}
        self._waiting: list[Request] = []
        """Requests whose index lacks some of their tokens; those that did not have a turn come
        first."""

    def follow(self, requests: Sequence[Request]) -> list[TokenIndex]:
        """An index each; one may not know all of its text yet."""
        left = PIECE
        passed_over: list[Request] = []
        served: list[Request] = []
        for request in self._in_turn(requests):
            index = self._indexes.setdefault(request, TokenIndex())
            num_new = min(len(request.tokens) - len(index), left)
            num_touched = index.num_touched(num_new)
            if num_new and (num_touched <= left or left == PIECE):
                index.extend(request.tokens[len(index) : len(index) + num_new])
                left = max(left - num_touched, 0)
                served.append(request)
            else:
                passed_over.append(request)
        self._waiting = [
            one for one in (*passed_over, *served) if len(self._indexes[one]) < len(one.tokens)
        ]
        return [self._indexes[request] for request in requests]

    def _in_turn(self, requests: Sequence[Request]) -> Iterable[Request]:
        if not self._waiting:
            return requests
        asked = set(requests)
        return dict.fromkeys((*(one for one in self._waiting if one in asked), *requests))

    def forget(self, request: Request) -> None:
        self._indexes.pop(request, None)
        if request in self._waiting:
            self._waiting.remove(request)


def common_suffix(text: Sequence[int], end: int, other: Sequence[int], limit: int) -> int:
    """How many tokens before `end` of `text` are those at the end of `other`, up to `limit`."""
    limit, last = min(limit, end, len(other)), len(other)
    if text[end - limit : end] == other[last - limit :]:
        return limit
    length = 0
    while length < limit and text[end - 1 - length] == other[last - 1 - length]:
        length += 1
    return length


def _key(first: int, second: int) -> int:
    return (first << 32) | (second & 0xFFFFFFFF)
