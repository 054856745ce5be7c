"""Growing token sequences with look-up of the tokens that followed a given suffix.

    text      a b c d  a b c e  a b x  ... b c        looked up by the last two tokens, then longer
    longest   before e, 2 equal tokens                the last position of the longest match
    agreed    d or e, by the majority of positions    token by token, with the share of their weight

Compiled if the library is available (`kernels/cpu/source/drafting/token_text.cpp`), else
`ReferenceText`. A *place* is the position of the token that follows a match: place 2 follows the
first pair.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from baton.kernels.cpu.library import library_without_torch
from baton.kernels.drafting.look_up import LookUp
from baton.kernels.drafting.token_text_cpu import CompiledText

PIECE = 16_384
"""The most tokens that the reference sorts at once."""
TAIL = 1024
"""Most tokens in its table."""
GAP = -1
"""Separator between texts; not a token."""


class TokenText(Protocol):
    """Look-ups take `tokens` that start with this text's tokens and may continue them."""

    def __len__(self) -> int: ...

    def extend(self, tokens: Sequence[int]) -> None: ...

    def num_touched(self, num_new: int) -> int:
        """Tokens that `extend` would process for `num_new` more."""

    def last(self, num_tokens: int) -> list[int]:
        """The last `num_tokens`, or all if fewer."""

    def longest(self, tokens: Sequence[int], how: LookUp) -> tuple[int, int]:
        """The place after the longest match with the end of `tokens` (the last of several) and the
        length of that match; zeros if there is none of two tokens."""

    def agreed(
        self, tokens: Sequence[int], how: LookUp, max_tokens: int, other: TokenText | None
    ) -> tuple[list[int], list[float]]:
        """The continuation of `tokens` by majority of the places here and in `other`, a text of the
        same class, weighted by match length: tokens with confidences. A place that disagrees is
        dropped for later tokens; matches of half the longest length or less do not count."""


def kind_of_texts() -> Callable[[], TokenText]:
    """The class of texts to use, compiled if possible. Classes cannot be mixed, so call it once."""
    found = library_without_torch()
    if found is None:
        return ReferenceText
    return partial(CompiledText, found)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Sorted arrays of pairs and places with binary search: 12 bytes a token; sorting 16,384 tokens
    takes 4 ms."""

    start: int
    """The place after its first pair."""
    pairs: array[int]  # int64
    places: array[int]  # int32
    """The places that follow the pairs, ascending among equal pairs."""

    def places_after(self, pair: int, max_places: int) -> array[int]:
        """The last `max_places` places that follow `pair`."""
        first, stop = bisect_left(self.pairs, pair), bisect_right(self.pairs, pair)
        return self.places[max(first, stop - max_places) : stop]


class ReferenceText:
    """The reference. The last tokens are in a hash table, which is fast to extend:

    |<- sorted ->|<- sorted ->| ... |<- counted ->|      pieces of the text, the oldest first
       at most PIECE pairs             at most TAIL
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._pieces: list[_Piece] = []
        self._tail: dict[int, list[int]] = {}
        """Ascending places that follow each pair of tokens."""
        self._tail_start = 2
        """The place after its first pair; the first pair of the text is followed by place 2."""

    def __len__(self) -> int:
        return len(self.tokens)

    def last(self, num_tokens: int) -> list[int]:
        return self.tokens[-num_tokens:]

    def longest(self, tokens: Sequence[int], how: LookUp) -> tuple[int, int]:
        places = (
            self.places_after((tokens[-2], tokens[-1]), how.max_places) if len(tokens) > 1 else ()
        )
        if not places:
            return 0, 0
        lengths = [common_suffix(self.tokens, place, tokens, how.max_match) for place in places]
        longest = max(lengths)
        return places[lengths.index(longest)], longest

    def agreed(
        self, tokens: Sequence[int], how: LookUp, max_tokens: int, other: TokenText | None
    ) -> tuple[list[int], list[float]]:
        matches = self._matches(tokens, how, max_tokens)
        if other is not None:
            assert isinstance(other, ReferenceText)
            matches += other._matches(tokens, how, max_tokens)
        return _agreed(matches, how, max_tokens) if matches else ([], [])

    def _matches(self, tokens: Sequence[int], how: LookUp, max_tokens: int) -> list[_Match]:
        if len(tokens) < 2:
            return []
        text = self.tokens
        return [
            (text[place : place + max_tokens], common_suffix(text, place, tokens, how.max_match))
            for place in self.places_after((tokens[-2], tokens[-1]), how.max_places)
        ]

    def extend(self, tokens: Sequence[int]) -> None:
        text, tail = self.tokens, self._tail
        text.extend(tokens)
        if len(text) - self._tail_start > TAIL:
            self._sort()
            return
        for place in range(max(2, len(text) - len(tokens) + 1), len(text) + 1):
            tail.setdefault(_key(text[place - 2], text[place - 1]), []).append(place)

    def num_touched(self, num_new: int) -> int:
        """Number of tokens that would be sorted."""
        length = len(self.tokens) + num_new
        if length - self._tail_start <= TAIL:
            return num_new
        return max(num_new, length + 1 - self._sorted_from(length))

    def places_after(self, pair: tuple[int, int], max_places: int) -> list[int]:
        """The last places that follow `pair` and hold a token, latest first."""
        key, last = _key(*pair), len(self.tokens)
        places_of_tail = self._tail.get(key, ())[-max_places - 1 :]  # one may be at the very end
        found = [place for place in reversed(places_of_tail) if place < last]
        for piece in reversed(self._pieces):
            if len(found) >= max_places:
                break
            places = piece.places_after(key, max_places + 1)
            found += [place for place in reversed(places) if place < last]
        return found[:max_places]

    def _sort(self) -> None:
        """Turn the tail into sorted pieces, merging it with a small last piece."""
        start = self._sorted_from(len(self.tokens))
        if start < self._tail_start:
            self._pieces.pop()
        for first in range(start, len(self.tokens) + 1, PIECE):
            stop = min(first + PIECE, len(self.tokens) + 1)
            self._pieces.append(_sorted(self.tokens[first - 2 : stop - 1], first))
        self._tail.clear()
        self._tail_start = len(self.tokens) + 1

    def _sorted_from(self, length: int) -> int:
        """The beginning of the first piece to be built when the text has this length."""
        if self._pieces and length - self._pieces[-1].start < PIECE:
            return self._pieces[-1].start
        return self._tail_start


def _sorted(text: Sequence[int], start: int) -> _Piece:
    """`start`: the place after the first two tokens of `text`."""
    tokens = torch.tensor(text, dtype=torch.int64)
    pairs, order = torch.sort((tokens[:-1] << 32) | (tokens[1:] & 0xFFFFFFFF), stable=True)
    return _Piece(start, array("q", pairs.tolist()), array("i", (order + start).tolist()))


_Match = tuple[list[int], int]
"""The tokens that follow a match, up to the longest draft, and the length of the match."""


def _agreed(
    matches: Sequence[_Match], how: LookUp, max_tokens: int
) -> tuple[list[int], list[float]]:
    """At each position the token with the most weight; matches that disagree are dropped."""
    longest = max([length for _, length in matches])
    left = [match for match in matches if 2 * match[1] > longest]
    sure = min(1.0, longest / how.sure_length)
    tokens: list[int] = []
    confidences: list[float] = []
    while left and len(tokens) < max_tokens:
        at, first = len(tokens), left[0][0]
        if all([behind == first for behind, _ in left]):
            rest = first[at : first.index(GAP, at)] if GAP in first[at:] else first[at:]
            tokens += rest
            confidences += [sure] * len(rest)
            break
        weights: dict[int, int] = {}
        for behind, length in left:
            token = behind[at] if at < len(behind) else GAP
            weights[token] = weights.get(token, 0) + length
        best = max(weights, key=weights.__getitem__)
        share = weights[best] / sum(weights.values())
        if best == GAP or share < how.min_share:
            break
        left = [match for match in left if at < len(match[0]) and match[0][at] == best]
        tokens.append(best)
        confidences.append(share * sure)
    return tokens, confidences


def common_suffix(text: Sequence[int], end: int, other: Sequence[int], limit: int) -> int:
    """Length of the common suffix of `text[:end]` and `other`, up to `limit`."""
    limit, last = min(limit, end, len(other)), len(other)
    if text[end - limit : end] == other[last - limit :]:
        return limit
    length = 0
    while length < limit and text[end - 1 - length] == other[last - 1 - length]:
        length += 1
    return length


def _key(first: int, second: int) -> int:
    return (first << 32) | (second & 0xFFFFFFFF)
