"""A pool of a request's most recent n-grams, keyed by first token.

    n-gram   a | b  c  d     stored with x, the token before it when it was last seen
    find     ... x a         -> b c d; an n-gram stored with the same x is preferred

After that, an n-gram whose second token equals the guess is preferred, then the most recent one.
"""

from __future__ import annotations

from typing import NamedTuple

LENGTH = 4
"""Number of tokens of an n-gram, the first included."""
MAX_NGRAMS, MAX_OF_TOKEN = 4096, 4
"""Most n-grams of a pool, about 1 MiB, and most with the same first token. The oldest are
dropped."""


class Match(NamedTuple):
    continuation: tuple[int, ...]
    """The n-gram's tokens after the first."""
    is_in_place: bool
    """Whether the token before the n-gram is the same as when it was seen."""
    is_as_guessed: bool
    """Whether the n-gram's second token equals the guess."""


class NgramPool:
    def __init__(self) -> None:
        self._by_first: dict[int, dict[tuple[int, ...], int]] = {}
        """By first token: the tokens after it, each mapped to the token before the n-gram. Both
        levels are ordered from the oldest to the most recent."""
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def add(self, before: int, first: int, continuation: tuple[int, ...]) -> None:
        """Add an n-gram, or make it the most recent one. `before`: the token before it, or a
        negative number if it begins the text."""
        known = self._by_first.pop(first, None) or {}
        self._by_first[first] = known
        self._num -= len(known)
        known.pop(continuation, None)
        known[continuation] = before
        if len(known) > MAX_OF_TOKEN:
            del known[next(iter(known))]
        self._num += len(known)
        while self._num > MAX_NGRAMS:
            self._num -= len(self._by_first.pop(next(iter(self._by_first))))

    def find(self, before: int, first: int, guess: int | None) -> Match | None:
        """The best n-gram that begins with `first`, which stands after `before`. `guess`: the
        guessed token after `first`. None if there is no such n-gram."""
        best, best_rank = None, (False, False)
        for continuation, stood in self._by_first.get(first, {}).items():
            rank = stood == before, continuation[0] == guess
            if best is None or rank >= best_rank:  # equals are more recent
                best, best_rank = continuation, rank
        return None if best is None else Match(best, *best_rank)
