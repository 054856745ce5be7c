"""Gathers rows of a matrix:   y[s] = x[rows[s]]"""

from __future__ import annotations

from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.elementwise import take_rows_cpu as cpu


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x [T, D] and rows [S] int64 -> [S, D]"""
    if operators.runs(x):
        return cpu.take_rows(x, rows)
    return reference(x, rows)


def reference(x: Tensor, rows: Tensor) -> Tensor:
    return x[rows]
