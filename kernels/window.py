"""How far back a token sees: to the beginning, some tokens (itself among them), or its chunk's.

    position        0 1 2 3 4 5 6 7 8
    3               ............[. . 8]     the last three
    Chunks(3)       ............[6 7 8]     positions 6 to 8 are one chunk: 7 sees 6 and 7, 6 itself

What is behind it no token sees, whatever its window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Chunks:
    size: int


Window: TypeAlias = int | Chunks | None
"""None: a token sees all before it."""


def size_of(window: int | Chunks) -> int:
    """The most that a token sees."""
    return window.size if isinstance(window, Chunks) else window


def first_seen(window: Window, position: int) -> int:
    """By a token at `position`."""
    if window is None:
        return 0
    if isinstance(window, Chunks):
        return position // window.size * window.size
    return max(0, position - window + 1)


def within(window: Window, context_len: int) -> Window:
    """The same for so many tokens: None if it hides nothing of them."""
    return None if window is None or size_of(window) >= context_len else window


def as_number(window: Window) -> int:
    """As operators have it: 0 for none, less than 0 for chunks."""
    return -window.size if isinstance(window, Chunks) else window or 0
