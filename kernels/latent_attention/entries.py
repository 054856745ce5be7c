"""Entries of a compressed context, and which of them a token attends to."""

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
    """What tokens see beside the last ones."""

    arena: Tensor
    windows: Windows
    index: EntryIndex | None = None
    """None: they see all."""
