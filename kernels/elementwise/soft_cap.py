"""Soft capping of logits:   y = cap tanh(x / cap)"""

from __future__ import annotations

from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.elementwise import elementwise_cpu as cpu


def soft_cap_(x: Tensor, cap: float) -> Tensor:
    """Compute cap * tanh(x / cap) in place, since logits are large; returns x."""
    if operators.runs(x) and x.is_contiguous():
        cpu.soft_cap_(x, cap)
        return x
    return x.div_(cap).tanh_().mul_(cap)


def reference(x: Tensor, cap: float) -> Tensor:
    return (x / cap).tanh() * cap
