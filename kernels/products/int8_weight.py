"""8-bit weights with one scale per row:   W[n, k] = scale[n] * w[n, k],  w in [-127, 127]

    scale = max over k of |W[n, k]| / 127            |W - scale w| <= scale / 2

Rows with a maximum of at most 1e-30 count as 0; rows with an infinity or NaN become NaN.

In memory a panel is [K / 4][32][4] bytes u = w + 128.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.cpu.shared_pages import PAGES
from baton.kernels.products import quantized_linear_cpu as quantized_linear
from baton.kernels.products.int8_rows import LARGEST, TINY
from baton.kernels.products.packed_quantized_weight import (
    PANEL,
    PackedQuantizedWeight,
    in_panels,
    num_panels,
    places,
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Int8Weight(PackedQuantizedWeight):
    bits: ClassVar[int] = 8

    def _dequantized(self, panels: Tensor, columns: Tensor) -> Tensor:
        assert self.scales is not None
        u = self.packed[panels, :, columns].flatten(1)  # [rows, K]
        return (u.float() - 128) * self.scales[panels, columns, None]


def num_bytes(num_rows: int, width: int, *, is_gated: bool = False) -> int:
    """Bytes of the packed weight."""
    return num_panels(num_rows, is_gated) * PANEL * (quantized_linear.padded(width) + 4)


def quantize(weight: Tensor, *, is_gated: bool = False) -> Int8Weight:
    """Quantizes W [N, K]. If gated, W is the gate matrix G stacked on the up matrix U."""
    make = _compiled if operators.runs(weight) else reference
    packed, scales = make(weight, is_gated)
    return Int8Weight(
        shape=(weight.shape[0], weight.shape[1]),
        dtype=weight.dtype,
        is_gated=is_gated,
        packed=packed,
        scales=scales,
    )


def of_items(items: Tensor, scales: Tensor, dtype: torch.dtype, *, is_gated: bool) -> Int8Weight:
    """Packs a quantized weight of a checkpoint, int8 items [N, K] with scales [N], without further
    rounding."""
    found, spread = panels_of_items(items, scales, is_gated)
    packed = PAGES.cut(found.shape)
    packed.copy_(found)
    return Int8Weight(
        shape=(items.shape[0], items.shape[1]),
        dtype=dtype,
        is_gated=is_gated,
        packed=packed,
        scales=spread,
    )


def panels_of_items(items: Tensor, scales: Tensor, is_gated: bool) -> tuple[Tensor, Tensor]:
    """Packs items and scales in panels: bytes [panels, K / 4, 32, 4] and scales [panels, 32]."""
    u = in_panels(items.view(torch.uint8) ^ 128, is_gated, torch.uint8, 128)
    spread = torch.zeros(len(u) * PANEL)
    spread[places(len(items), is_gated)] = scales.float()
    return _by_fours(u), spread.view(-1, PANEL)


def _compiled(weight: Tensor, is_gated: bool) -> tuple[Tensor, Tensor]:
    count = num_panels(len(weight), is_gated)
    width = quantized_linear.padded(weight.shape[1])
    packed = PAGES.cut((count, width // 4, PANEL, 4))
    scales = torch.empty(count, PANEL)
    quantized_linear.pack(8, weight, packed, scales, is_gated=is_gated)
    return packed, scales


def reference(weight: Tensor, is_gated: bool) -> tuple[Tensor, Tensor]:
    """The quantized bytes [panels, K / 4, 32, 4] and scales [panels, 32]."""
    wide = in_panels(weight, is_gated)  # [panels, 32, K]
    limit = wide.abs().amax(dim=-1)
    inverse = torch.where(limit > TINY, limit.new_tensor(LARGEST) / limit, 0)
    w = torch.round(wide * inverse[..., None])
    poison = (wide * 0).sum(dim=-1)
    return _by_fours((w + 128).to(torch.uint8)), limit / LARGEST + poison


def _by_fours(u: Tensor) -> Tensor:
    """[panels, 32, K] -> [panels, K / 4, 32, 4]"""
    fours = u.contiguous().view(torch.int32)  # moved as one
    return fours.transpose(1, 2).contiguous().view(torch.uint8).view(len(u), -1, PANEL, 4)
