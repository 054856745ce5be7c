"""The sum of two tensors of one shape and dtype, rounded to it."""

from __future__ import annotations

from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.elementwise import elementwise_cpu as cpu


def add(x: Tensor, y: Tensor) -> Tensor:
    if x.shape == y.shape and operators.runs(x, y):
        return cpu.add(x, y)
    return reference(x, y)


def reference(x: Tensor, y: Tensor) -> Tensor:
    return x + y
