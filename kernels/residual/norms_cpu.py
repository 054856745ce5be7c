"""Norms by the operators of source/rms_norm.cpp and source/layer_norm.cpp.

With a residual they also give the sum that they normalise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, call, of_dtype, runs, small_rows


def can_normalise(x: Tensor, *weights: Tensor) -> bool:
    """Weights have the dtype of x, or are float32."""
    return runs(x) and (
        all(weight.dtype is x.dtype for weight in weights)
        or all(weight.dtype is torch.float32 for weight in weights)
    )


def rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, ...]:
    return _norm("rms_norm", x, residual, (weight,), eps)


def layer_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, ...]:
    return _norm("layer_norm", x, residual, (weight, bias), eps)


def _norm(
    name: str, x: Tensor, residual: Tensor | None, weights: tuple[Tensor, ...], eps: float
) -> tuple[Tensor, ...]:
    """(y, s), or (y,) without a residual."""
    weight, *bias = weights
    width = x.shape[-1]
    x = x.contiguous()
    outputs = tuple(torch.empty_like(x) for _ in range(1 if residual is None else 2))
    made = Call(
        of_dtype(name, x.dtype),
        rows=x.numel() // width,
        inputs=(x, weight, None if residual is None else residual.contiguous(), *bias),
        outputs=outputs,
        ints=(width, weight.dtype is torch.float32),
        floats=(eps,),
        alone_rows=small_rows(width * x.element_size() * 2 * len(outputs)),
    )
    call(made)
    return outputs
