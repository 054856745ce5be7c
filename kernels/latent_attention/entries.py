"""Entries of a compressed context, and the choice among them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from baton.kernels.cache_write.windows import Windows


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryIndex:
    """Queries and keys by which the top k entries are chosen."""

    q: Tensor  # [T, J, I]
    weights: Tensor  # [T, J]
    scale: float
    arena: Tensor
    windows: Windows
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """The entries that tokens attend to in addition to the window."""

    arena: Tensor
    windows: Windows
    index: EntryIndex | None = None
    """The index; None: all entries are attended to."""
