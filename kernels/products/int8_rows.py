"""Activations in eight bits, for products with int8 and int4 weights.

    x = scale * q      q whole, in [-127, 127]; scale = max |x| / 127, one a row

A row depends on itself alone, so what a token gives does not depend on the batch around it. What
is not finite makes its row NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127.0
TINY = 1e-30
"""Rows and groups of less count as 0: the inverse of their scale would not be finite."""


def reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, K] -> q [T, K], whole, and scales [T, 1], both float32."""
    wide = x.float()
    limit = wide.abs().amax(dim=-1, keepdim=True)
    inverse = torch.where(limit > TINY, limit.new_tensor(LARGEST) / limit, 0)
    poison = (wide * 0).sum(dim=-1, keepdim=True)
    return torch.round(wide * inverse), limit / LARGEST + poison
