"""Settings of draft look-ups."""

from __future__ import annotations

from typing import NamedTuple


class LookUp(NamedTuple):
    """Limits of a look-up."""

    max_match: int
    """The most tokens of a match; longer ones count as this."""
    max_places: int
    """The latest places examined in each text."""
    min_share: float = 0.0
    """The least share of weight for a token; below it the draft ends."""
    sure_length: float = 1.0
    """Tokens of a match from which on its confidence is full."""
