"""How fast a replica computes, in numbers."""

from __future__ import annotations

import math
from typing import NamedTuple


class SpeedCoefficients(NamedTuple):
    """A speed in numbers: passes x step + new tokens x token + pairs x pair + new tokens / rate."""

    step_s: float = 0.0
    """Seconds of each pass of up to `max_chunk` tokens."""
    token_s: float = 0.0
    pair_s: float = 0.0
    """Seconds of a pair: a new token and one before it, which it attends to."""
    max_chunk: float = 1.0
    tokens_per_s: float = math.inf
