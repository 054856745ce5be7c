"""Matrix products with weights:   y = x W^T + b

x [T, K], W [N, K], b [N]. What a weight is kept as is up to the device
(kernels/products/weight.py).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from baton.kernels.elementwise.gelu import gelu_tanh_mul
from baton.kernels.elementwise.silu_mul import silu_mul
from baton.kernels.products.weight import Weight

GATES = {"silu": silu_mul, "gelu_pytorch_tanh": gelu_tanh_mul}
"""Gate and product [T, 2F] -> [T, F], by the name that `config.json` has for the activation."""


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """[T, K] -> [T, N], in the dtype of x."""
    if isinstance(weight, Tensor):
        return _wide(x, weight, bias, x.dtype)
    return weight.linear(x, bias)


def gated_linear(x: Tensor, weight: Weight, activation: str, bias: Tensor | None = None) -> Tensor:
    """[T, K] -> [T, F]:   act(x G^T) * (x U^T), the weight being G above U, [2F, K]."""
    if isinstance(weight, Tensor):
        return GATES[activation](linear(x, weight, bias))
    return weight.gated_linear(x, activation, bias)


def logits(x: Tensor, weight: Weight) -> Tensor:
    """[S, K] -> [S, V] float32, unrounded where the device can."""
    if isinstance(weight, Tensor):
        return _wide(x, weight, None, torch.float32)
    return weight.logits(x)


def _wide(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Few rows on a GPU are bound by reading the weight, for which torch has no kernel."""
    if x.is_cuda and x.dtype is weight.dtype:
        from baton.kernels.products.linear_gpu import FEW_ROWS, linear_tiles

        if 0 < len(x) <= FEW_ROWS:
            return linear_tiles(x, weight, bias=bias, dtype=dtype)
    return functional.linear(x, weight, bias).to(dtype)
