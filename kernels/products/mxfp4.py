"""What four-bit floating point with shared exponents stands for (MXFP4):   W = e2m1 * 2^(s - 127)

    e2m1     0  0.5  1  1.5  2  3  4  6, and with the highest bit their negatives
    s        one byte for 32 neighbours of an output; 255 is NaN

Two items share a byte, the first in its low half. All are exact in bfloat16 and float32, down to
what those can hold at all.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 32
GROUP_BYTES = 16
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BIAS, NAN = 127, 255


def widen(blocks: Tensor, scales: Tensor) -> Tensor:
    """uint8 [N, G, 16] and [N, G], the latter maybe as e8m0 -> float32 [N, 32 G]"""
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(2)  # [N, G, 32]
    return (twice(codes).float() * (powers_of(scales) / 2).unsqueeze(-1)).flatten(1)


def twice(codes: Tensor) -> Tensor:
    """What e2m1 stands for, doubled: whole numbers, int8. Byte by byte, for it is much faster."""
    exponent, mantissa = codes >> 1 & 3, codes & 1
    is_normal = exponent.clamp(max=1)
    magnitude = (2 * is_normal + mantissa) << (exponent - is_normal)
    sign = 1 - (codes >> 3 << 1).view(torch.int8)
    return magnitude.view(torch.int8) * sign


def values_of(codes: Tensor) -> Tensor:
    """e2m1, each in four bits of a byte, -> float32"""
    table = torch.tensor((*VALUES, *(-value for value in VALUES)), device=codes.device)
    return table[codes.int()]


def powers_of(scales: Tensor) -> Tensor:
    """e8m0 -> float32"""
    table = [*(2.0 ** (byte - BIAS) for byte in range(NAN)), torch.nan]
    return torch.tensor(table, device=scales.device)[scales.view(torch.uint8).int()]
