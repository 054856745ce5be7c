"""RMS norm by the operator of source/residual/rms_norm.cpp, and how operators of norms are called.

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
    return norm("rms_norm", x, residual, weight, eps)


def norm(
    name: str, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, **inputs: Tensor
) -> tuple[Tensor, ...]:
    """(y, s), or (y,) without a residual."""
    width = x.shape[-1]
    x = x.contiguous()
    y, s = torch.empty_like(x), None if residual is None else torch.empty_like(x)
    written = (y,) if s is None else (y, s)
    made = Call(
        of_dtype(name, x.dtype),
        rows=x.numel() // width,
        inputs={
            "x": x,
            "weight": weight,
            "residual": None if residual is None else residual.contiguous(),
            "width": width,
            "has_float_weight": weight.dtype is torch.float32,
            "eps": eps,
            **inputs,
        },
        outputs={"y": y, "s": s},
        alone_rows=small_rows(width * x.element_size() * 2 * len(written)),
    )
    call(made)
    return written
