"""4-bit weights with one scale per 32 items of a row:   W[n, k] = scale[n, k / 32] * w[n, k]

w is in [-8, 7]. The item of a group with the largest magnitude becomes -8, so the scale is that
item / -8, of either sign, stored in bfloat16. An item of the same magnitude and opposite sign is
clipped to 7:

    |W - scale w| <= |scale| / 2, or <= |scale| (1 + 1/32) where w = 7

Groups with a scale of at most 1e-30 count as 0; groups with an infinity or NaN become NaN.

In memory a panel is K / 32 groups of: scales [32] bfloat16, then bytes [4][32][4]. Byte j of step i
has u = w + 8 of k = 8 i + j in its lower half and of k = 8 i + 4 + j in its upper half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.cpu.shared_pages import PAGES
from baton.kernels.products import quantized_linear_cpu as quantized_linear
from baton.kernels.products.int8_rows import TINY
from baton.kernels.products.packed_quantized_weight import (
    GROUP,
    PANEL,
    PackedQuantizedWeight,
    in_panels,
    num_panels,
    places,
)

SCALE_BYTES = 2 * PANEL
GROUP_BYTES = SCALE_BYTES + PANEL * GROUP // 2


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Int4Weight(PackedQuantizedWeight):
    bits: ClassVar[int] = 4

    def _dequantized(self, panels: Tensor, columns: Tensor) -> Tensor:
        scales = self.packed[:, :, :SCALE_BYTES].view(torch.bfloat16)
        halves = self.packed[:, :, SCALE_BYTES:]
        halves = halves.view(*halves.shape[:2], 4, PANEL, 4)
        both = halves[panels, :, :, columns]  # [rows, K / 32, 4, 4]
        u = torch.stack([both & 15, both >> 4], dim=3).flatten(2)  # [rows, K / 32, 32]
        return ((u.float() - 8) * scales[panels, :, columns, None].float()).flatten(1)


def num_bytes(num_rows: int, width: int, *, is_gated: bool = False) -> int:
    """Bytes of the packed weight."""
    num_groups = quantized_linear.padded(width) // GROUP
    return num_panels(num_rows, is_gated) * num_groups * GROUP_BYTES


def quantize(weight: Tensor, *, is_gated: bool = False) -> Int4Weight:
    """Quantizes W [N, K]. If gated, W is the gate matrix G stacked on the up matrix U."""
    make = _compiled if operators.runs(weight) else reference
    return Int4Weight(
        shape=(weight.shape[0], weight.shape[1]),
        dtype=weight.dtype,
        is_gated=is_gated,
        packed=make(weight, is_gated),
        scales=None,
    )


def of_items(items: Tensor, scales: Tensor, dtype: torch.dtype, *, is_gated: bool) -> Int4Weight:
    """Packs a quantized weight of a checkpoint: uint8 items [N, K] in [0, 15], where 8 means 0, and
    scales [N, G].

    A group is a multiple of 32 items. Scales are rounded to bfloat16:  |W - W'| <= |W| / 2^8.
    """
    found = panels_of_items(items, scales, is_gated)
    packed = PAGES.cut(found.shape)
    packed.copy_(found)
    return Int4Weight(
        shape=(items.shape[0], items.shape[1]),
        dtype=dtype,
        is_gated=is_gated,
        packed=packed,
        scales=None,
    )


def panels_of_items(items: Tensor, scales: Tensor, is_gated: bool) -> Tensor:
    """Packs items and scales in panels: bytes [panels, K / 32, 576]."""
    num_rows, width = items.shape
    u = in_panels(items, is_gated, torch.uint8, 8)
    groups = scales.repeat_interleave(width // GROUP // scales.shape[1], 1)  # [N, K / 32]
    spread = torch.zeros(len(u) * PANEL, u.shape[2] // GROUP, dtype=torch.bfloat16)
    spread[places(num_rows, is_gated), : groups.shape[1]] = groups.to(torch.bfloat16)
    return _bytes_of(u, spread.view(len(u), PANEL, -1))


def _compiled(weight: Tensor, is_gated: bool) -> Tensor:
    count = num_panels(len(weight), is_gated)
    num_groups = quantized_linear.padded(weight.shape[1]) // GROUP
    packed = PAGES.cut((count, num_groups, GROUP_BYTES))
    quantized_linear.pack(4, weight, packed, None, is_gated=is_gated)
    return packed


def reference(weight: Tensor, is_gated: bool) -> Tensor:
    """The quantized bytes [panels, K / 32, 576]."""
    wide = in_panels(weight, is_gated)
    groups = wide.view(len(wide), PANEL, -1, GROUP)  # [panels, 32, K / 32, 32]
    top, bottom = groups.amax(dim=-1), groups.amin(dim=-1)
    poison = (groups * 0).sum(dim=-1)
    scales = (torch.where(top > -bottom, top, bottom) / -8 + poison).to(torch.bfloat16)
    scales = torch.where(scales.float().abs() <= TINY, 0, scales)  # [panels, 32, K / 32]
    inverse = torch.where(scales == 0, 0, 1 / scales.float())
    u = (torch.round(groups * inverse[..., None]) + 8).clamp(0, 15).to(torch.uint8)
    return _bytes_of(u.flatten(2), scales)


def _bytes_of(u: Tensor, scales: Tensor) -> Tensor:
    """u [panels, 32, K] and bfloat16 [panels, 32, K / 32] -> [panels, K / 32, 576]"""
    # Four bytes are moved as one int32. The shift stays within each byte, as items have only 4
    # bits.
    fours = u.contiguous().view(torch.int32).view(len(u), PANEL, -1, 4, 2)
    both = (fours[..., 0] | fours[..., 1] << 4).permute(0, 2, 3, 1)  # [panels, K / 32, 4, 32]
    packed = both.contiguous().view(torch.uint8)
    scale_bytes = scales.transpose(1, 2).contiguous().view(torch.uint8)
    return torch.cat([scale_bytes, packed.flatten(2)], dim=-1)
