"""Compiled elementwise functions; see source/elementwise/elementwise.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, call, of_dtype, small_rows

FUNCTION_COST = 8
"""An exponential and a division take as long as copying this many bytes."""


def apply(name: str, x: Tensor) -> Tensor:
    """`name` is relu, gelu or gelu_tanh."""
    x = x.contiguous()
    y = torch.empty_like(x)
    call(_call(name, x, y, _width(x), cost=FUNCTION_COST))
    return y


def add(x: Tensor, y: Tensor) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    call(_call("add", x, out, _width(x), cost=2, more=y.contiguous()))
    return out


def gate(name: str, gate_up: Tensor) -> Tensor:
    """`name` is silu_mul or gelu_tanh_mul; [..., 2F] -> [..., F]"""
    gate_up = gate_up.contiguous()
    width = gate_up.shape[-1] // 2
    y = gate_up.new_empty(*gate_up.shape[:-1], width)
    call(_call(name, gate_up, y, width, cost=FUNCTION_COST))
    return y


def soft_cap_(x: Tensor, cap: float) -> None:
    """Soft-cap `x` in place; it is float32 and contiguous."""
    call(_call("soft_cap", x, x, _width(x), cost=FUNCTION_COST, cap=cap))


def _width(x: Tensor) -> int:
    return x.shape[-1] if x.dim() else 1


def _call(
    name: str, x: Tensor, y: Tensor, width: int, *, cost: int, **inputs: Tensor | float
) -> Call:
    return Call(
        of_dtype(name, y.dtype),
        rows=y.numel() // width,
        inputs={"x": x, "width": width, **inputs},
        outputs={"y": y},
        alone_rows=small_rows(width * y.element_size() * cost),
    )
