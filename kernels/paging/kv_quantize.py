"""8-bit KV: one float32 scale per token and head, for K and for V.

    scale = max |x| / largest           over head_dim; largest is 127 for int8, 448 for e4m3
    item  = x / scale                   rounded to nearest, ties to even
    x'    = item * scale

    |x - x'| <= scale / 2                             int8
    |x - x'| <= max(|x| / 2^4, scale / 2^10)          e4m3: 3 bits of mantissa, least item 2^-9

Arithmetic is float32. A row of zeros has scale 0. A row with an infinity or NaN has scale NaN and
items of 0, so it is NaN when it is read. Shapes: x and items [..., tokens, head_dim], scales [...,
tokens].
"""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGERS_ONLY = 1.5 * 2.0**23
QUANTIZED_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
"""The dtype of 8-bit items, by its name in the configuration (core/kv_layout.py)."""
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns (items, scales). Raises ValueError for a dtype without scales."""
    if dtype not in LARGEST:
        raise ValueError(f"{dtype} has no scales; {', '.join(map(str, LARGEST))} have")
    x, largest = x.float(), LARGEST[dtype]
    scales = x.abs().amax(dim=-1) / largest
    is_finite = scales.isfinite()
    x, scales = x.where(is_finite.unsqueeze(-1), 0.0), scales.where(is_finite, torch.nan)
    divisors = torch.where(scales > 0, scales, torch.ones_like(scales))
    # Rounding may push the quotient above the largest item, and e4m3 has no infinity, only NaN.
    items = (x / divisors.unsqueeze(-1)).clamp(-largest, largest)
    return (_rounded(items) if dtype is torch.int8 else items).to(dtype), scales


def _rounded(x: Tensor) -> Tensor:
    """Rounds to the nearest integer, ties to even, for |x| < 2^22, as float32 has no fractions from
    2^23 on.

    `torch.round` gives the same, but is a hundred times as slow for a few thousand numbers, because
    it uses all of torch's threads.
    """
    return (x + _INTEGERS_ONLY) - _INTEGERS_ONLY


def dequantize(items: Tensor, scales: Tensor) -> Tensor:
    """Returns float32."""
    return items.float() * scales.unsqueeze(-1)
