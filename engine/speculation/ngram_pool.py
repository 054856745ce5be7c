"""N-grams of a request by their first token, the youngest of each.

    n-gram   a | b  c  d     with x, the token before it when it was last seen
    asked    ... x a         -> b c d, before those of other tokens x

An n-gram whose first two tokens match a guess also comes before the others.
"""

from __future__ import annotations

from typing import NamedTuple

LENGTH = 4
"""Tokens of an n-gram, the first included."""
MAX_NGRAMS, MAX_OF_TOKEN = 4096, 4
"""Most n-grams of a pool, about 1 MiB, and of those with the same first token. The oldest go."""


class Match(NamedTuple):
    behind: tuple[int, ...]
    """The tokens behind the first."""
    is_in_place: bool
    """What stands before is what stood before."""
    is_as_guessed: bool


class NgramPool:
    def __init__(self) -> None:
        self._by_first: dict[int, dict[tuple[int, ...], int]] = {}
        """The tokens behind each, with the one before it; here and there the oldest first."""
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def add(self, before: int, first: int, behind: tuple[int, ...]) -> None:
        """The youngest n-gram now; `before`: the token before it, or one that there is not."""
        known = self._by_first.pop(first, None) or {}
        self._by_first[first] = known
        self._num -= len(known)
        known.pop(behind, None)
        known[behind] = before
        if len(known) > MAX_OF_TOKEN:
            del known[next(iter(known))]
        self._num += len(known)
        while self._num > MAX_NGRAMS:
            self._num -= len(self._by_first.pop(next(iter(self._by_first))))

    def find(self, before: int, first: int, guess: int | None) -> Match | None:
        """What may stand behind `first`, that is behind `before`; `guess`: the token behind it."""
        best, best_rank = None, (False, False)
        for behind, stood in self._by_first.get(first, {}).items():
            rank = stood == before, behind[0] == guess
            if best is None or rank >= best_rank:  # as good and younger
                best, best_rank = behind, rank
        return None if best is None else Match(best, *best_rank)
