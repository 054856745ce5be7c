"""Layer norm (Ba et al. 2016), alone or with the residual add that precedes it.

    s = x + residual                                                              [T, D]
    y = (s - mean(s)) / sqrt(var(s) + eps) * weight + bias       over D           [T, D]

Arithmetic is float32; s and y are stored in the dtype of x.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from baton.kernels.residual import layer_norm_cpu as cpu
from baton.kernels.residual.rms_norm_cpu import can_normalise


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalise over the last dimension of x, which may have any number of others."""
    if weight.shape != x.shape[-1:] or bias.shape != weight.shape:
        raise ValueError(f"shapes do not fit: {x.shape=} {weight.shape=} {bias.shape=}")
    if x.is_cuda:
        from baton.kernels.residual import layer_norm_gpu as gpu  # Triton, which CPUs do without

        return gpu.layer_norm(x, None, weight, bias, eps)[0]
    if can_normalise(x, weight, bias):
        return cpu.layer_norm(x, None, weight, bias, eps)[0]
    return functional.layer_norm(x, weight.shape, weight, bias, eps)  # float32 inside


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return (y, s) as new tensors."""
    if residual.shape != x.shape:
        raise ValueError(f"shapes do not fit: {x.shape=} {residual.shape=}")
    if x.is_cuda:
        from baton.kernels.residual import layer_norm_gpu as gpu  # Triton, which CPUs do without

        return gpu.layer_norm(x, residual, weight, bias, eps)
    if x.dtype is residual.dtype and can_normalise(x, weight, bias):
        y, s = cpu.layer_norm(x, residual, weight, bias, eps)
        return y, s
    s = x + residual
    return layer_norm(s, weight, bias, eps), s


def reference(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The definition, step by step."""
    s = (x.float() + residual.float()).to(x.dtype)
    centred = s.float() - s.float().mean(dim=-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + eps)
    return (centred * scale * weight.float() + bias.float()).to(x.dtype), s
