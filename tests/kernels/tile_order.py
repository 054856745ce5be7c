"""The order in which matrix tiles add, as Intel defines it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def sums_of_tiles(x: Tensor, weight: Tensor) -> NDArray[np.float32]:
    """[T, K] times [N, K]: of each 32 items the even and the odd ones apart, then both, then on.

    A fused multiplication and addition is one of float64, rounded once: of such items it is exact.
    """
    padding = (0, -x.shape[1] % 32)
    a = torch.nn.functional.pad(x, padding).double().numpy()[:, None, :]
    b = torch.nn.functional.pad(weight, padding).double().numpy()[None, :, :]
    sums = np.zeros((len(x), len(weight)), np.float32)
    for first in range(0, a.shape[2], 32):
        even, odd = np.zeros_like(sums), np.zeros_like(sums)
        for k in range(first, first + 32, 2):
            even = (even + a[..., k] * b[..., k]).astype(np.float32)
            odd = (odd + a[..., k + 1] * b[..., k + 1]).astype(np.float32)
        sums += even + odd
    return sums
