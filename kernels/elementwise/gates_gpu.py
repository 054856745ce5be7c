# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""The gates of SwiGLU and GeGLU:   y = act(gate) * up      [T, 2F] -> [T, F]

The clamped gate of kernels/elementwise/clamped_swiglu.py, too.

Bound by memory: each item is read once, 8 items of a row per thread. Arithmetic is float32, and
only the result is rounded.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 1024
"""16 bytes per thread of four warps, for items of two bytes."""


def silu_mul(gate_up: Tensor) -> Tensor:
    """The first F columns are the gate."""
    return _gated(gate_up, "silu")


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """The first F columns are the gate."""
    return _gated(gate_up, "gelu_tanh")


def clamped_swiglu(gate_up: Tensor, alpha: float, limit: float, offset: float) -> Tensor:
    """The first F columns are the gate."""
    return _gated(gate_up, "clamped_swiglu", alpha, limit, offset)


def _gated(
    gate_up: Tensor,
    activation: str,
    alpha: float = 1.0,
    limit: float = 0.0,
    offset: float = 0.0,
) -> Tensor:
    rows = gate_up.reshape(-1, gate_up.shape[-1])
    width = rows.shape[1] // 2
    y = torch.empty(*gate_up.shape[:-1], width, dtype=rows.dtype, device=rows.device)
    if y.numel():
        _gate[len(rows), triton.cdiv(width, COLUMNS)](
            rows, rows.stride(0), y, width, float(alpha), float(limit), float(offset),
            ACTIVATION=activation, COLUMNS=COLUMNS, num_warps=4,
        )  # fmt: skip
    return y


@triton.jit
def _gate(
    gate_up, stride, y, width, alpha, limit, offset,
    ACTIVATION: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    at = gate_up + row * stride + columns
    gate = tl.load(at, mask=inside, other=0.0)
    up = tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    if ACTIVATION == "gelu_tanh":
        # x / 2 (1 + tanh u) = x sigmoid(2 u)
        slope = 2 * 0.7978845608028654 * (wide + 0.044715 * wide * wide * wide)
    elif ACTIVATION == "clamped_swiglu":
        wide = tl.where(wide > limit, limit, wide)  # NaN stays NaN
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up)) + offset
        slope = wide * alpha
    else:
        slope = wide
    product = wide / (1.0 + tl.exp(-slope)) * up
    tl.store(y + row * width + columns, product.to(gate.dtype), mask=inside)
