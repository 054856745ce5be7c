"""Attention windows: all tokens before, a number of them (including the token itself), or a chunk.

    position        0 1 2 3 4 5 6 7 8
    3               ............[. . 8]     the last three
    Streaming(3, 2) [0 1].......[. . 8]     those and the first two: StreamingLLM (Xiao et al. 2023)
    Chunks(3)       ............[6 7 8]     positions 6 to 8 are one chunk: 7 sees 6 and 7, 6 itself

No token sees later ones, whatever its window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Chunks:
    size: int


@dataclass(frozen=True, slots=True)
class Streaming:
    size: int
    """Number of last tokens that a query sees."""
    num_first: int

    def __post_init__(self) -> None:
        if self.size < 1 or self.num_first < 0:
            raise ValueError(f"impossible sizes of a window: {self}")


Window: TypeAlias = int | Chunks | Streaming | None
"""None: a token sees all tokens before it."""


def size_of(window: int | Chunks | Streaming) -> int:
    """The most tokens that a token sees."""
    match window:
        case Chunks():
            return window.size
        case Streaming():
            return window.size + window.num_first
        case _:
            return window


def num_first_of(window: Window) -> int:
    """Number of first tokens that all later tokens see."""
    return window.num_first if isinstance(window, Streaming) else 0


def last_of(window: Window) -> int | Chunks | None:
    """The window without the first tokens."""
    return window.size if isinstance(window, Streaming) else window


def first_seen(window: Window, position: int) -> int:
    """The first position that a token at `position` sees through the window; in addition it sees
    `num_first_of` first tokens."""
    match window:
        case None:
            return 0
        case Chunks():
            return position // window.size * window.size
        case Streaming():
            return max(0, position - window.size + 1)
        case _:
            return max(0, position - window + 1)


def within(window: Window, context_len: int) -> Window:
    """The window for a context of this length: None if it hides nothing."""
    return None if window is None or size_of(window) >= context_len else window


def as_number(window: Window) -> int:
    """The window as operators take it, without first tokens: 0 for none, negative for chunks."""
    last = last_of(window)
    return -last.size if isinstance(last, Chunks) else last or 0
