"""KV in 8 bits: one float32 scale for each token and head, of K and of V.

    scale = max |x| / largest           over head_dim; largest is 127 for int8, 448 for e4m3
    item  = x / scale                   rounded to the nearest, ties to even
    x'    = item * scale

    |x - x'| <= scale / 2                             int8
    |x - x'| <= max(|x| / 2^4, scale / 2^10)          e4m3: 3 bits of mantissa, least item 2^-9

Arithmetic is float32. A row of zeros has scale 0, and one that is not all finite has scale NaN and
items of 0: it is NaN when it is read. Shapes: x and items [..., tokens, head_dim],
scales [..., tokens].
"""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGERS_ONLY = 1.5 * 2.0**23
QUANTIZED_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
"""What items of 8 bits are, by the name of their kind (core/kv_layout.py)."""
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return (items, scales). Raises ValueError for a dtype that has no scales."""
    if dtype not in LARGEST:
        raise ValueError(f"{dtype} has no scales; {', '.join(map(str, LARGEST))} have")
    x, largest = x.float(), LARGEST[dtype]
    scales = x.abs().amax(dim=-1) / largest
    is_finite = scales.isfinite()
    x, scales = x.where(is_finite.unsqueeze(-1), 0.0), scales.where(is_finite, torch.nan)
    divisors = torch.where(scales > 0, scales, torch.ones_like(scales))
    # The quotient may pass the largest item by a rounding, and e4m3 has no infinity but NaN.
    items = (x / divisors.unsqueeze(-1)).clamp(-largest, largest)
    return (_rounded(items) if dtype is torch.int8 else items).to(dtype), scales


def _rounded(x: Tensor) -> Tensor:
    """To the nearest integer, ties to even, for |x| < 2^22.

    From 2^23 on float32 has no fractions. `torch.round` says the same, but is a hundred times as
    slow for a few thousand numbers where torch has several threads: it takes them all.
    """
    return (x + _INTEGERS_ONLY) - _INTEGERS_ONLY


def dequantize(items: Tensor, scales: Tensor) -> Tensor:
    """As float32."""
    return items.float() * scales.unsqueeze(-1)
