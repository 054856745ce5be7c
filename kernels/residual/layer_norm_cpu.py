"""Compiled layer norm; see source/residual/layer_norm.cpp."""

from __future__ import annotations

from torch import Tensor

from baton.kernels.residual.rms_norm_cpu import norm


def layer_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, ...]:
    return norm("layer_norm", x, residual, weight, eps, bias=bias)
