"""Converts MXFP4, 4-bit floating point with shared exponents:   W = e2m1 * 2^(s - 127)

    e2m1     0  0.5  1  1.5  2  3  4  6, and with the highest bit their negatives
    s        one byte per 32 consecutive items of an output; 255 means NaN

Two items share a byte, the first in its low half. All values are exact in bfloat16 and float32, as
far as the range of these goes.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 32
GROUP_BYTES = 16
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BIAS, NAN = 127, 255


def widen(blocks: Tensor, scales: Tensor) -> Tensor:
    """blocks uint8 [N, G, 16] and scales [N, G], uint8 or e8m0 -> float32 [N, 32 G]"""
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(2)  # [N, G, 32]
    return (twice(codes).float() * (powers_of(scales) / 2).unsqueeze(-1)).flatten(1)


def twice(codes: Tensor) -> Tensor:
    """Twice the e2m1 values, which are integers, as int8. Computed in bytes, which is much faster
    than in wider types."""
    exponent, mantissa = codes >> 1 & 3, codes & 1
    is_normal = exponent.clamp(max=1)
    magnitude = (2 * is_normal + mantissa) << (exponent - is_normal)
    sign = 1 - (codes >> 3 << 1).view(torch.int8)
    return magnitude.view(torch.int8) * sign


def values_of(codes: Tensor) -> Tensor:
    """e2m1 codes, one per byte, -> float32"""
    table = torch.tensor((*VALUES, *(-value for value in VALUES)), device=codes.device)
    return table[codes.int()]


def powers_of(scales: Tensor) -> Tensor:
    """e8m0 -> float32"""
    table = [*(2.0 ** (byte - BIAS) for byte in range(NAN)), torch.nan]
    return torch.tensor(table, device=scales.device)[scales.view(torch.uint8).int()]
