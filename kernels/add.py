"""The sum of two tensors of one shape and dtype, rounded to it."""

from __future__ import annotations

from torch import Tensor

from baton.kernels.cpu import elementwise as cpu
from baton.kernels.cpu import operators


def add(x: Tensor, y: Tensor) -> Tensor:
    if x.shape == y.shape and operators.runs(x, y):
        return cpu.add(x, y)
    return reference(x, y)


def reference(x: Tensor, y: Tensor) -> Tensor:
    return x + y
