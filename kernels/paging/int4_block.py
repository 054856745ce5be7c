"""The KV of a full block in 4 bits: keys per dimension, values per token (KIVI, Liu et al. 2024).

    zero   <= least              over the tokens of the block (K) or the dimensions of a token (V)
    scale  >= (most - zero) / 15
    item   = (x - zero) / scale          rounded to nearest, ties to even: 0 to 15
    x'     = item * scale + zero         |x - x'| <= scale / 2

A dimension of K is large in all tokens or in none, so tokens share its range; V has no such
dimensions. Zero and scale are float16, rounded down and up, so that every x is within the range of
items; |x| above 65504, the largest float16, is clipped to that. Arithmetic is float32. A NaN makes
its zero and scale NaN, and so all values that share them; such items are 0.

    unit   items K [S][H/2], V [S][H/2]        item d in the low bits of byte d, d + H/2 in the high
           scales of K [H], zeros of K [H], scales of V [S], zeros of V [S]        float16; padding

S tokens a block, H head width, which is even.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST_ITEM = 15
STEP_BYTES = 2
"""Bytes of a zero or a scale."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """Views of the parts of units [..., bytes]."""

    units: Tensor
    block_size: int
    width: int

    @property
    def items(self) -> Tensor:
        """[..., 2, S, H/2]"""
        items = self.units[..., : self._items_bytes]
        return items.view(*self.units.shape[:-1], 2, self.block_size, self.width // 2)

    @property
    def key_steps(self) -> Tensor:
        """[..., 2, H] float16: scales, zeros."""
        return self._steps(0, self.width)

    @property
    def value_steps(self) -> Tensor:
        """[..., 2, S] float16: scales, zeros."""
        return self._steps(2 * self.width, self.block_size)

    @property
    def _items_bytes(self) -> int:
        return self.block_size * self.width

    def _steps(self, first: int, count: int) -> Tensor:
        start = self._items_bytes + first * STEP_BYTES
        steps = self.units[..., start : start + 2 * count * STEP_BYTES].view(torch.float16)
        return steps.view(*self.units.shape[:-1], 2, count)


def quantize_block(kv: Tensor, units: Tensor) -> None:
    """Quantize K and V [..., 2, S, H] to units [..., bytes] uint8."""
    block_size, width = kv.shape[-2:]
    place = _Unit(units, block_size, width)
    keys, values = kv.float().unbind(-3)
    key_scales, key_zeros = _steps_over(keys, -2)
    value_scales, value_zeros = _steps_over(values, -1)
    place.key_steps.copy_(torch.stack((key_scales.squeeze(-2), key_zeros.squeeze(-2)), dim=-2))
    steps = torch.stack((value_scales.squeeze(-1), value_zeros.squeeze(-1)), dim=-2)
    place.value_steps.copy_(steps)
    items = torch.stack(
        (_items(keys, key_scales, key_zeros), _items(values, value_scales, value_zeros)), dim=-3
    )
    low, high = items.chunk(2, dim=-1)
    place.items.copy_(low | high << 4)


def dequantize_block(units: Tensor, block_size: int, width: int) -> Tensor:
    """Dequantize units [..., bytes] to K and V [..., 2, S, H] float32."""
    place = _Unit(units, block_size, width)
    items = torch.cat((place.items & 15, place.items >> 4), dim=-1).float()
    keys, values = items.unbind(-3)
    key_scales, key_zeros = place.key_steps.float().unsqueeze(-2).unbind(-3)
    value_scales, value_zeros = place.value_steps.float().unsqueeze(-1).unbind(-3)
    return torch.stack((keys * key_scales + key_zeros, values * value_scales + value_zeros), dim=-3)


def _steps_over(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Scales and zeros, float16; `dim` is kept, with length 1."""
    limit = torch.finfo(torch.float16).max
    least, most = torch.aminmax(x.clamp(-limit, limit) + 0.0, dim=dim, keepdim=True)
    zeros = -_ceiling(-least)
    return _ceiling((most - zeros.float()) / LARGEST_ITEM), zeros + 0.0


def _ceiling(x: Tensor) -> Tensor:
    """The smallest float16 that is not below x, which is within its range."""
    nearest = x.to(torch.float16) + 0.0
    bits = nearest.view(torch.int16)  # sign and magnitude: one less is nearer to zero
    above = torch.where(nearest > 0, bits + 1, torch.where(nearest < 0, bits - 1, 1))
    return torch.where(nearest.float() < x, above.to(torch.int16).view(torch.float16), nearest)


def _items(x: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """Items, uint8."""
    divisors = torch.where(scales > 0, scales, torch.ones_like(scales)).float()
    return (
        ((x - zeros.float()) / divisors)
        .clamp(0, LARGEST_ITEM)
        .nan_to_num(0.0)
        .round()
        .to(torch.uint8)
    )
