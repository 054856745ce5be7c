"""An arena of one layer with 8-bit items, followed by their scales (core/kv_layout.py).

    units [blocks][K][unit bytes]     items [2][S][H], scales [2][S] float32, padding

A pass attends to its own new tokens in their quantized form, as later passes do, so results do not
depend on chunks and prefix hits.

K KV heads, S tokens a block, H head width, T new tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.paging.kv_quantize import dequantize, quantize

SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class QuantizedArena:
    units: Tensor
    """[blocks, K, unit bytes] uint8"""
    dtype: torch.dtype
    """The dtype of the items."""
    block_size: int
    width: int
    """H"""

    def write(self, blocks: Tensor, offsets: Tensor, kv: Tensor) -> Tensor:
        """Quantize kv [T, 2, K, H] into `blocks` and `offsets` [T]; returns it dequantized."""
        items, scales = quantize(kv, self.dtype)
        self._items(self.units).permute(0, 3, 2, 1, 4)[blocks, offsets] = items.view(torch.uint8)
        self._scales(self.units).permute(0, 3, 2, 1)[blocks, offsets] = scales
        return dequantize(items, scales).to(kv.dtype)

    def gather(self, units: Tensor, dtype: torch.dtype) -> Tensor:
        """Some units, numbered block * K + head, as [units, 2, S, H] of `dtype`."""
        found = self.units.view(-1, self.units.shape[-1]).index_select(0, units)
        return dequantize(self._items(found).view(self.dtype), self._scales(found)).to(dtype)

    def clear_tail(self, block: int, num_used: int) -> None:
        """Zero the slots of one block after its first `num_used` tokens."""
        self._items(self.units[block])[..., num_used:, :] = 0
        self._scales(self.units[block])[..., num_used:] = 0

    @property
    def _items_bytes(self) -> int:
        return 2 * self.block_size * self.width

    def _items(self, units: Tensor) -> Tensor:
        """[..., 2, S, H] uint8; shows the memory of `units`."""
        items = units[..., : self._items_bytes]
        return items.view(*units.shape[:-1], 2, self.block_size, self.width)

    def _scales(self, units: Tensor) -> Tensor:
        """[..., 2, S]; shows the memory of `units`."""
        start = self._items_bytes
        scales = units[..., start : start + 2 * self.block_size * SCALE_BYTES].view(torch.float32)
        return scales.view(*units.shape[:-1], 2, self.block_size)


Arena = Tensor | QuantizedArena
"""The KV of one layer. A tensor is [blocks, K, 2, S, H] and read as it was written."""
