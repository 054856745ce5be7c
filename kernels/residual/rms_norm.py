"""RMS norm, alone or with the residual add that precedes it.

    s = x + residual                                  [T, D]
    y = s / sqrt(mean(s^2, over D) + eps) * weight    [T, D]

Arithmetic is float32; s and y are stored in the dtype of x, and the norm is that of s as stored.
The weight may be wider than x: Gemma's is 1 + w, which would lose bits in a narrow dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from baton.kernels.residual import rms_norm_cpu as cpu


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise over the last dimension of x, which may have any number of others."""
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"shapes do not fit: {x.shape=} {weight.shape=}")
    if x.is_cuda:
        from baton.kernels.residual import rms_norm_gpu as gpu  # Triton, which CPUs do without

        return gpu.rms_norm(x, None, weight, eps)[0]
    if cpu.can_normalise(x, weight):
        return cpu.rms_norm(x, None, weight, eps)[0]
    if x.dtype is torch.float32:
        return functional.rms_norm(x, weight.shape, weight, eps)
    return _normalise(x.float(), weight, eps).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (y, s) as new tensors."""
    if residual.shape != x.shape or weight.shape != x.shape[-1:]:
        raise ValueError(f"shapes do not fit: {x.shape=} {residual.shape=} {weight.shape=}")
    if x.is_cuda:
        from baton.kernels.residual import rms_norm_gpu as gpu  # Triton, which CPUs do without

        return gpu.rms_norm(x, residual, weight, eps)
    if x.dtype is residual.dtype and cpu.can_normalise(x, weight):
        y, s = cpu.rms_norm(x, residual, weight, eps)
        return y, s
    s = x + residual
    return rms_norm(s, weight, eps), s


def reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The definition: what the tests hold every implementation to, and the last resort."""
    s = (x.float() + residual.float()).to(x.dtype)
    return _normalise(s.float(), weight, eps).to(x.dtype), s


def _normalise(s: Tensor, weight: Tensor, eps: float) -> Tensor:
    return s * torch.rsqrt(s.square().mean(dim=-1, keepdim=True) + eps) * weight.float()
