# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Addresses of tokens in an arena with any type of items, for Triton kernels.

    items    block * block_stride + head * head_stride + (kv * S + slot) * H + column
    scales   the same strides, in float32, from items_bytes on: + kv * S + slot

kv is 0 for K and 1 for V. Without scales, strides are counted in items. S tokens a block, H head
width. Offsets are int64, since arenas exceed 2^31 items: a block number of an int32 table is
widened before it is multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.paging.quantized_arena import SCALE_BYTES, Arena, QuantizedArena


@dataclass(frozen=True, slots=True)
class PagedCache:
    """One layer's arena as addresses and strides."""

    items: Tensor
    scales: Tensor
    """float32 from the first unit's scales on; the items again if there are none."""
    num_kv_heads: int
    block_size: int
    width: int
    has_scales: bool

    @property
    def block_stride(self) -> int:
        return self.items.stride(0)

    @property
    def head_stride(self) -> int:
        return self.items.stride(1)

    @property
    def scale_strides(self) -> tuple[int, int]:
        """The strides of a block and of a head."""
        return self.scales.stride(0), self.scales.stride(1)

    @classmethod
    def of(cls, arena: Arena) -> PagedCache:
        if isinstance(arena, QuantizedArena):
            start = 2 * arena.block_size * arena.width
            if start % SCALE_BYTES:
                raise ValueError(f"scales at byte {start} of a unit; the GPU reads them at fours")
            scales = arena.units.view(torch.float32)[..., start // SCALE_BYTES :]
            items = arena.units.view(arena.dtype)
            kv_heads = arena.units.shape[1]
            return cls(items, scales, kv_heads, arena.block_size, arena.width, True)
        _, kv_heads, _, block_size, width = arena.shape
        if arena.stride()[2:] != (block_size * width, width, 1):
            raise ValueError(f"a unit must be contiguous: {arena.shape=} {arena.stride()=}")
        return cls(arena, arena, kv_heads, block_size, width, False)

    @property
    def column_tile(self) -> int:
        """Columns of a tile: a power of two, and at least 16, as products need."""
        return max(16, triton.next_power_of_2(self.width))


@triton.jit
def load_tile(items, tokens, inside, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """[tokens, COLUMNS] items whose rows start at `tokens`; 0 outside, and from WIDTH on."""
    columns = tl.arange(0, COLUMNS)
    at = items + tokens[:, None] + columns[None, :]
    if WIDTH == COLUMNS:
        return tl.load(at, mask=inside[:, None], other=0.0)
    else:
        return tl.load(at, mask=inside[:, None] & (columns < WIDTH)[None, :], other=0.0)


@triton.jit
def as_computed(x, dtype: tl.constexpr, HAS_SCALES: tl.constexpr):
    """Items in the dtype of the products, without rounding: every such dtype holds 8-bit items
    exactly.

    The conversion goes through float32, for which the device has packed instructions at full rate;
    a direct one to bfloat16 would convert one item at a time.
    """
    if HAS_SCALES:
        return x.to(tl.float32).to(dtype)
    else:
        return x
