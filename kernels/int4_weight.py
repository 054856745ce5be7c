"""Weights in four bits, one scale for each 32 of a row:   W[n, k] = scale[n, k / 32] * w[n, k]

w is in [-8, 7]. What is furthest from 0 in its group becomes -8, so the scale is that number / -8,
of either sign, in bfloat16. What is as far on the other side is cut off at 7:

    |W - scale w| <= |scale| / 2, or <= |scale| (1 + 1/32) where w = 7

In memory a panel is [K / 32] groups of: scales [32] bfloat16; then bytes [4][32][4], byte j of
step i having u = w + 8 of k = 8 i + j in its lower half and of k = 8 i + 4 + j in its upper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baton.kernels.cpu import operators, quantized_linear
from baton.kernels.cpu.shared_pages import PAGES
from baton.kernels.int8_rows import TINY
from baton.kernels.quantized_weight import GROUP, PANEL, QuantizedWeight, in_panels, num_panels

SCALE_BYTES = 2 * PANEL
GROUP_BYTES = SCALE_BYTES + PANEL * GROUP // 2


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Int4Weight(QuantizedWeight):
    bits: ClassVar[int] = 4

    def _kept(self, panels: Tensor, columns: Tensor) -> Tensor:
        scales = self.packed[:, :, :SCALE_BYTES].view(torch.bfloat16)
        halves = self.packed[:, :, SCALE_BYTES:]
        halves = halves.view(*halves.shape[:2], 4, PANEL, 4)
        both = halves[panels, :, :, columns]  # [rows, K / 32, 4, 4]
        u = torch.stack([both & 15, both >> 4], dim=3).flatten(2)  # [rows, K / 32, 32]
        return ((u.float() - 8) * scales[panels, :, columns, None].float()).flatten(1)


def quantize(weight: Tensor, *, is_gated: bool = False) -> Int4Weight:
    """W [N, K]; a gated one is G above what it lets through."""
    make = _compiled if operators.runs(weight) else reference
    return Int4Weight(
        shape=(weight.shape[0], weight.shape[1]),
        dtype=weight.dtype,
        is_gated=is_gated,
        packed=make(weight, is_gated),
        scales=None,
    )


def _compiled(weight: Tensor, is_gated: bool) -> Tensor:
    count = num_panels(len(weight), is_gated)
    num_groups = quantized_linear.padded(weight.shape[1]) // GROUP
    packed = PAGES.cut((count, num_groups, GROUP_BYTES))
    quantized_linear.pack(4, weight, (packed,), is_gated=is_gated)
    return packed


def reference(weight: Tensor, is_gated: bool) -> Tensor:
    """Bytes [panels, K / 32, 576]."""
    wide = in_panels(weight, is_gated)
    groups = wide.view(len(wide), PANEL, -1, GROUP)  # [panels, 32, K / 32, 32]
    top, bottom = groups.amax(dim=-1), groups.amin(dim=-1)
    scales = (torch.where(top > -bottom, top, bottom) / -8).to(torch.bfloat16)
    scales = torch.where(scales.abs() > TINY, scales, 0)  # [panels, 32, K / 32]
    inverse = torch.where(scales == 0, 0, 1 / scales.float())
    u = (torch.round(groups * inverse[..., None]) + 8).clamp(0, 15).to(torch.uint8)
    steps = u.view(len(wide), PANEL, -1, 4, 2, 4)
    low, high = steps.permute(4, 0, 2, 3, 1, 5)  # [panels, K / 32, 4, 32, 4]
    scale_bytes = scales.transpose(1, 2).contiguous().view(torch.uint8)
    return torch.cat([scale_bytes, (low | high << 4).flatten(2)], dim=-1)
