"""A prompt that looks for a replica, as policies see it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Prompt:
    number: int
    """Which one it is of those this gateway has met: equal dues are settled by it."""
    num_tokens: int
    arrived_s: float
    priority: int = 0
    """Smaller goes first, within bounds (`turns.py`)."""
    names: Sequence[bytes] = ()
    """Chained block hashes; equal at depth k means an equal prefix of k blocks."""
    num_blocks: int = 0
    block_size: int = 1
    """Tokens of a named block."""
    session: str = ""
    """The conversation it continues, or begins."""
    is_first_turn: bool = True
    due_s: float = math.inf
    """When its first token is due, by its objective; infinite: it has none."""
    draw: int = 0
    """64 bits that settle what is equal otherwise: fair over many prompts, the same each time."""


@lru_cache(maxsize=1024)  # a placement asks several times for its request's
def drawn(name: str) -> int:
    """64 bits for a name, evenly spread."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def mixed(one: int, other: int) -> int:
    """Mix two draws into a third (the finaliser of splitmix64, Steele et al. 2014)."""
    bits = (one ^ other) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


def mix(draws: NDArray[np.uint64], other: int) -> NDArray[np.uint64]:
    """`mixed`, of many at once."""
    bits = draws ^ np.uint64(other & _MASK)
    bits ^= bits >> _30
    bits *= _FIRST
    bits ^= bits >> _27
    bits *= _SECOND
    bits ^= bits >> _31
    return bits


_MASK = (1 << 64) - 1
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
