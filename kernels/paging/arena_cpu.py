"""The description of an arena for operators: address and layout of units.

source/paging/arena.h reads the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.paging.quantized_arena import Arena, QuantizedArena

WIDE = 0
"""Number of the item type that is the model's dtype."""
ITEMS = {torch.int8: 1, torch.float8_e4m3fn: 2}
"""Numbers of the 8-bit item types."""
MAX_WIDTH = 256
"""The widest head: a tile of wider queries would not stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class CpuArena:
    memory: Tensor
    num_heads: int
    block_size: int
    width: int
    items: int
    unit_bytes: int

    @classmethod
    def of(cls, arena: Arena) -> CpuArena:
        if isinstance(arena, QuantizedArena):
            _, heads, unit_bytes = arena.units.shape
            size, width, items = arena.block_size, arena.width, ITEMS[arena.dtype]
            memory = arena.units
        else:
            _, heads, _, size, width = arena.shape
            unit_bytes, items = 2 * size * width * arena.element_size(), WIDE
            memory = arena
        if not memory.is_contiguous():
            raise ValueError("an arena on a CPU must be contiguous")
        return cls(memory, heads, size, width, items, unit_bytes)
