"""Activations quantized to 8 bits, for products with int8 and int4 weights.

    x = scale * q      q an integer in [-127, 127]; scale = max |x| / 127, one per row

Each row is quantized on its own, so results are batch-invariant. An infinity or NaN makes its whole
row NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127.0
TINY = 1e-30
"""Rows and groups with a smaller maximum count as 0: the inverse of their scale would overflow."""


def reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, K] -> integers q [T, K] and scales [T, 1], both stored as float32."""
    wide = x.float()
    limit = wide.abs().amax(dim=-1, keepdim=True)
    inverse = torch.where(limit > TINY, limit.new_tensor(LARGEST) / limit, 0)
    poison = (wide * 0).sum(dim=-1, keepdim=True)
    return torch.round(wide * inverse), limit / LARGEST + poison
