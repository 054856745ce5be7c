"""How a text of tokens is looked through for what stood behind the same tokens."""

from __future__ import annotations

from typing import NamedTuple


class LookUp(NamedTuple):
    """How a text is looked through."""

    max_match: int
    """Tokens of the longest match that counts; longer ones count as this."""
    max_places: int
    """The last places that are looked at in each text."""
    min_share: float = 0.0
    """Least share of the weight that agrees on a token; below it there are no more."""
    sure_length: float = 1.0
    """Tokens of a match from which on it is as sure as can be."""
