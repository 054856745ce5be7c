"""What the operators of blocks sealed in 4 bits share: source/sealed_*.cpp."""

from __future__ import annotations

from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.paging.arena_cpu import MAX_WIDTH
from baton.kernels.paging.sealed_arena import SealedArena

WIDE = 0
"""The value of `Items` for items that are not 8-bit ones."""


def runs(x: Tensor, arena: SealedArena) -> bool:
    """Whether operators take heads x [..., H] to or from such an arena."""
    return x.shape[-1] <= MAX_WIDTH and operators.runs(x, arena.open_rows)
