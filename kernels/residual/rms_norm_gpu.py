# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""RMS norm and layer norm, with or without the residual add before them, in one pass over memory.

    s = x + residual                          rounded to the dtype of x, as it is stored
    y = (s - mean) / sqrt(...) * weight + bias        mean and bias in layer norms only

One program per row, which it keeps in registers: read once, written once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def rms_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """(y, s), both of the shape of x; without a residual s is x."""
    return normalise(x, residual, weight, None, eps)


def normalise(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Layer norm if there is a bias."""
    width = x.shape[-1]
    rows = x.reshape(-1, width)
    others = None if residual is None else residual.reshape(-1, width)
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    if others is not None and others.stride(-1) != 1:
        others = others.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    s = x if others is None else torch.empty_like(y)
    columns = triton.next_power_of_2(width)
    if rows.numel():
        _norm[len(rows),](
            rows, rows.stride(0), others, 0 if others is None else others.stride(0),
            weight, bias, y, s, eps,
            WIDTH=width, COLUMNS=columns,
            HAS_RESIDUAL=others is not None, IS_LAYER=bias is not None,
            num_warps=max(1, min(16, columns // 256)),  # 8 numbers a thread, up to 4,096 in all
        )  # fmt: skip
    return y, s


@triton.jit
def _norm(
    x, x_stride, residual, residual_stride, weight, bias, y, s, eps,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    IS_LAYER: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    inside = columns < WIDTH
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0)
    wide = values.to(tl.float32)
    if HAS_RESIDUAL:
        at = residual + row * residual_stride + columns
        wide += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        summed = wide.to(values.dtype)
        tl.store(s + row * WIDTH + columns, summed, mask=inside)
        wide = summed.to(tl.float32)
    if IS_LAYER:
        wide = tl.where(inside, wide - tl.sum(wide, 0) / WIDTH, 0.0)
    factor = tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + eps)
    out = wide * factor * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if IS_LAYER:
        out += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * WIDTH + columns, out.to(values.dtype), mask=inside)
