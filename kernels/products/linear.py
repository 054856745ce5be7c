"""Matrix products with weights:   y = x W^T + b

x [T, K], W [N, K], b [N]. The format of a weight depends on the device and the configuration
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
"""Gated activations [T, 2F] -> [T, F], by the name of the activation in `config.json`."""


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """x [T, K] -> [T, N], in the dtype of x."""
    if isinstance(weight, Tensor):
        return _wide(x, weight, bias, x.dtype)
    return weight.linear(x, bias)


def gated_linear(x: Tensor, weight: Weight, activation: str, bias: Tensor | None = None) -> Tensor:
    """x [T, K] -> act(x G^T) * (x U^T) [T, F]; the weight [2F, K] is G stacked on U."""
    if isinstance(weight, Tensor):
        return GATES[activation](linear(x, weight, bias))
    return weight.gated_linear(x, activation, bias)


def logits(x: Tensor, weight: Weight) -> Tensor:
    """x [S, K] -> [S, V] float32, not rounded to the dtype of x if the device can avoid it."""
    if isinstance(weight, Tensor):
        return _wide(x, weight, None, torch.float32)
    return weight.logits(x)


def _wide(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """With few rows on a GPU the product is bound by reading the weight; torch has no kernel for
    that case, so Baton's own is used."""
    if x.is_cuda and x.dtype is weight.dtype:
        from baton.kernels.products.linear_gpu import FEW_ROWS, linear_tiles

        if 0 < len(x) <= FEW_ROWS:
            return linear_tiles(x, weight, bias=bias, dtype=dtype)
    return functional.linear(x, weight, bias).to(dtype)
