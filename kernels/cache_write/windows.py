"""Settings of compressed windows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The windows of a layer's compression."""

    num_tokens: int
    """m"""
    num_series: int
    """s: 1, or 2 whose windows overlap."""
    width: int
    """H"""

    def __post_init__(self) -> None:
        if self.num_tokens < 1 or self.num_series not in (1, 2) or self.width < 1:
            raise ValueError(f"impossible windows: {self}")

    @property
    def row_width(self) -> int:
        """Items cached per token."""
        return 2 * self.num_series * self.width

    @property
    def entry(self) -> slice:
        """The entry's place in the row of the window's last token."""
        return slice((self.num_series - 1) * self.width, self.num_series * self.width)

    def num_closed(self, num_tokens: int) -> int:
        """Entries of the first `num_tokens` tokens."""
        return num_tokens // self.num_tokens


@dataclass(frozen=True, slots=True, eq=False)
class EntryNorm:
    weight: Tensor  # [H]
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class RotaryFrequencies:
    """RoPE's frequencies, and the factor on its cosines and sines."""

    frequencies: Tensor  # [R/2] float32
    factor: float
