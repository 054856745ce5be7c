# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Quantizes activations to e4m3, with one scale per row or per group of 128 items of a row.

    s = max |x| / 448 over the group           q = x / s

If a group contains an infinity or NaN, s is NaN, and so is everything computed from it; without
this rule the maximum or e4m3 would lose such values. One program handles one group of one row. The
result is either q and s, in the layout that `scaled_mm` needs, or q * s in the dtype of x, so that
a product with unquantized activations gives the same result.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

FP8 = torch.float8_e4m3fn
STEPS_OF_SMALLEST = tl.constexpr(1.5 * 2.0 ** (23 - 9))
"""Adding and subtracting it rounds to multiples of 2^-9, the smallest e4m3 number."""


def round_rows(x: Tensor, group: int) -> Tensor:
    """x [T, K] -> q * s [T, K]; `group` items of a row share a scale. K must be a multiple of
    `group`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, out, out, group, IS_KEPT=False)
    return out


def quantize_rows(x: Tensor, group: int, num_rows: int) -> tuple[Tensor, Tensor]:
    """q [rows, K] and s [rows, K / group], stored column by column; rows beyond those of x are
    0."""
    items = torch.zeros(num_rows, x.shape[1], dtype=torch.uint8, device=x.device).view(FP8)
    scales = torch.zeros(x.shape[1] // group, num_rows, dtype=torch.float32, device=x.device)
    _launch(x, items, scales, group, IS_KEPT=True)
    return items, scales.t()


def _launch(x: Tensor, out: Tensor, scales: Tensor, group: int, *, IS_KEPT: bool) -> None:
    if x.shape[1] % group:
        raise ValueError(f"rows of {x.shape[1]} are not cut into groups of {group}")
    x = x if x.stride(-1) == 1 else x.contiguous()
    columns = triton.next_power_of_2(group)
    if len(x):
        _quantize[len(x), x.shape[1] // group](
            x, x.stride(0), out, scales, out.shape[1], scales.shape[-1],
            GROUP=group, COLUMNS=columns, IS_KEPT=IS_KEPT,
            num_warps=max(1, min(16, columns // 512)),
        )  # fmt: skip


@triton.jit
def _rounded(x):
    """The nearest e4m3 number, ties to even, for |x| <= 448. The cast to e4m3 is then exact on
    every device."""
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000  # three bits of mantissa
    normal = bits.to(tl.float32, bitcast=True)
    return tl.where(tl.abs(x) < 2.0**-6, (x + STEPS_OF_SMALLEST) - STEPS_OF_SMALLEST, normal)


@triton.jit(do_not_specialize=["num_rows"])
def _quantize(
    x, x_stride, out, scales, width, num_rows,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, IS_KEPT: tl.constexpr,
):  # fmt: skip
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    within = tl.arange(0, COLUMNS)
    inside = within < GROUP
    column = group * GROUP + within
    wide = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    is_finite = tl.sum((tl.abs(wide) < float("inf")).to(tl.int32), 0) == COLUMNS
    wide = tl.where(is_finite, wide, 0.0)
    largest = tl.max(tl.abs(wide), 0)
    scale = tl.where(largest > 0, largest / 448.0, 1.0)
    # Rounding may push the quotient above the largest e4m3 number, which would become NaN, as e4m3
    # has no infinity.
    items = _rounded(tl.clamp(tl.div_rn(wide, scale), -448.0, 448.0)).to(tl.float8e4nv)
    scale = tl.where(is_finite, scale, float("nan"))
    if IS_KEPT:
        tl.store(out + row * width + column, items, mask=inside)
        tl.store(scales + group * num_rows + row, scale)
    else:
        rounded = items.to(tl.float32) * scale
        tl.store(out + row * width + column, rounded.to(out.dtype.element_ty), mask=inside)
