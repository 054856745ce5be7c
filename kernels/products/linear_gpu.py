# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Products with weights of any width, at memory bandwidth when there are few rows.

    y [T, N] = x [T, K] W^T + b     W as in kernels/products/quantized_weight.py, or in x's dtype

    a program    COLUMNS outputs of ROWS rows, over one of the splits of K
    splits       let a few thousand outputs occupy the whole device. Their number depends on the
                 weight alone, and they are added in order, so a row does not depend on the other
                 rows of its tile, nor on their number if tiles are BATCH_INVARIANT_ROWS high

With few rows, each byte of W is read once and all else is hidden behind that. W is the M operand of
the tensor core instruction and x the N operand, so 16 rows, or one, fill an instruction. Items are
widened to the dtype of x in registers: 8-bit and 4-bit items fit exactly into bfloat16. A scale per
output is applied at the end, a scale per 128 inputs to the products of a step, and only scales of
narrower groups to the items themselves.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.gpu.dot import dot

FEW_ROWS = 16
"""Most rows for Baton's kernel; with more, products with unquantized weights use cuBLAS."""
ENOUGH_PROGRAMS = 528
"""Four programs per multiprocessor of an H100 or H200."""
BATCH_INVARIANT_ROWS = 64
"""Rows of a tile for batch-invariant results. With few rows the product is still bound by reading
the weight."""
MAX_PARTIAL_BYTES = 64 << 20
"""Most bytes of partial sums at a time for batch-invariant products, as prompts have many rows."""
MIN_SPLIT_ITEMS = 512
"""Least items of K in a split: shorter splits cost more to add up than they save."""


def linear_tiles(
    x: Tensor,
    items: Tensor,
    scales: Tensor | None = None,
    *,
    group: tuple[int, int] = (1, 0),
    zeros: Tensor | None = None,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
    is_batch_invariant: bool = False,
) -> Tensor:
    """x [T, K] -> [T, N] of `dtype`, or of x's dtype. `is_batch_invariant`: results are
    batch-invariant.

    items: [N, K] of x's dtype, int8 or float8_e4m3fn; or uint8 [N, K / 2] with two 4-bit items a
    byte. scales: float32 [N / group[0], K / group[1]]; group[1] = 0 means all of K. If scales are
    uint8, they are e8m0, and items are e2m1. zeros: uint8 [N, K / group[1]], the zero points of
    4-bit items; None if all are 8.
    """
    x = x if x.stride(-1) == 1 else x.contiguous()
    (num_rows, width), num_columns = x.shape, items.shape[0]
    is_4_bit = items.dtype is torch.uint8
    step = 128 if is_4_bit or items.element_size() == 1 else 64
    columns = 64
    rows = min(64, max(FEW_ROWS, triton.next_power_of_2(num_rows)))
    rows = BATCH_INVARIANT_ROWS if is_batch_invariant else rows
    tiles = triton.cdiv(num_columns, columns)
    splits = num_splits(num_columns, width, columns)
    per_split = triton.cdiv(triton.cdiv(width, step), splits) * step
    every = torch.empty(num_rows, num_columns, dtype=dtype or x.dtype, device=x.device)
    at_once = max(1, num_rows)
    if is_batch_invariant and splits > 1:
        of_tile = 4 * splits * num_columns * rows
        at_once = rows * max(1, MAX_PARTIAL_BYTES // of_tile)
    for first in range(0, num_rows, at_once):
        some, out = x[first : first + at_once], every[first : first + at_once]
        partial = out
        if splits > 1:
            shape = splits, len(some), num_columns
            partial = torch.empty(shape, dtype=torch.float32, device=x.device)
        _multiply[tiles, triton.cdiv(len(some), rows), splits](
            some, some.stride(0), items, items.stride(0), scales, zeros, bias, partial,
            len(some), num_columns, width, per_split,
            GROUP_ROWS=group[0], GROUP=group[1] or width, IS_4_BIT=is_4_bit,
            IS_SCALED_LATE=scales is not None and not group[1],
            ROWS=rows, COLUMNS=columns, STEP=step, HAS_SPLITS=splits > 1,
            num_warps=4,
            # Four tiles of W in flight are 32 KB per program. With four programs per multiprocessor
            # this is more than the bytes that must be in flight to hide the latency of memory.
            num_stages=4,
        )  # fmt: skip
        if splits > 1:
            block = 512
            _add_splits[triton.cdiv(len(some) * num_columns, block),](
                partial, bias, out, len(some) * num_columns, num_columns, splits, BLOCK=block
            )
    return every


def num_splits(num_columns: int, width: int, columns: int) -> int:
    """Number of splits of K; depends on the shape of the weight only."""
    wanted = triton.cdiv(ENOUGH_PROGRAMS, triton.cdiv(num_columns, columns))
    return max(1, min(wanted, width // MIN_SPLIT_ITEMS))


@triton.jit(do_not_specialize=["num_rows"])
def _multiply(
    x, x_stride, items, items_stride, scales, zeros, bias, out,
    num_rows, num_columns, width, per_split,
    GROUP_ROWS: tl.constexpr, GROUP: tl.constexpr, IS_4_BIT: tl.constexpr,
    IS_SCALED_LATE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STEP: tl.constexpr, HAS_SPLITS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    start = tl.program_id(2) * per_split
    stop = tl.minimum(start + per_split, width)
    is_column, is_row = column < num_columns, row < num_rows
    weight_row = items + column.to(tl.int64) * items_stride
    x_row = x + row.to(tl.int64) * x_stride
    scale_row = scales
    if scales is not None:
        scale_row = scales + (column // GROUP_ROWS) * (tl.cdiv(width, GROUP))
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    for at in range(start, stop, STEP):
        if IS_4_BIT:
            # The low bits of the bytes hold the first half of a group, the high bits the second.
            byte = at // 2 + tl.arange(0, STEP // 2)
            item = byte // (GROUP // 2) * GROUP + byte % (GROUP // 2)
            inside = item < stop
            mask = is_column[:, None] & inside[None, :]
            pairs = tl.load(weight_row[:, None] + byte[None, :], mask=mask, other=0x88)
            low = times_scales(
                pairs & 15, scale_row, zeros, column, width, at, is_column, stop,
                COLUMNS, STEP, GROUP,
            ).to(x.dtype.element_ty)  # fmt: skip
            high = times_scales(
                pairs >> 4, scale_row, zeros, column, width, at, is_column, stop,
                COLUMNS, STEP, GROUP,
            ).to(x.dtype.element_ty)  # fmt: skip
            x_mask = inside[:, None] & is_row[None, :]
            x_low = tl.load(x_row[None, :] + item[:, None], mask=x_mask, other=0.0)
            x_high = tl.load(x_row[None, :] + item[:, None] + GROUP // 2, mask=x_mask, other=0.0)
            acc = dot(low, x_low, acc)
            acc = dot(high, x_high, acc)
        else:
            item = at + tl.arange(0, STEP)
            inside = item < stop
            mask = is_column[:, None] & inside[None, :]
            x_mask = inside[:, None] & is_row[None, :]
            weight = tl.load(weight_row[:, None] + item[None, :], mask=mask, other=0.0)
            x_tile = tl.load(x_row[None, :] + item[:, None], mask=x_mask, other=0.0)
            if scales is None:
                acc = dot(weight, x_tile, acc)
            else:
                # Cast through float32, as a direct cast does not exist for all pairs of dtypes.
                weight = weight.to(tl.float32).to(x_tile.dtype)
                if IS_SCALED_LATE:
                    acc = dot(weight, x_tile, acc)
                else:  # a step lies within one group
                    scale = tl.load(scale_row + at // GROUP, mask=is_column, other=0.0)
                    none = tl.zeros([COLUMNS, ROWS], tl.float32)
                    acc += dot(weight, x_tile, none) * scale[:, None]
    if IS_SCALED_LATE:
        acc *= tl.load(scale_row, mask=is_column, other=0.0)[:, None]
    at = row.to(tl.int64)[None, :] * num_columns + column[:, None]
    kept = is_column[:, None] & is_row[None, :]
    if HAS_SPLITS:
        at += tl.program_id(2).to(tl.int64) * num_rows * num_columns
    elif bias is not None:
        acc += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[:, None]
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=kept)


@triton.jit
def times_scales(
    items, scale_row, zeros, column, width, at, is_column, stop,
    COLUMNS: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """(items - zeros) * scales, or fp4; items [COLUMNS, STEP / 2] are one half of each group."""
    group = at // GROUP + tl.arange(0, STEP // GROUP)
    mask = is_column[:, None] & (group * GROUP < stop)[None, :]
    scales = tl.load(scale_row[:, None] + group[None, :], mask=mask, other=0)
    grouped = tl.reshape(items, [COLUMNS, STEP // GROUP, GROUP // 2])
    if scale_row.dtype.element_ty == tl.uint8:
        wide = _of_e2m1(grouped)
        scales = (scales.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    elif zeros is None:
        wide = grouped.to(tl.float32) - 8
    else:
        zero_row = zeros + column * tl.cdiv(width, GROUP)
        zero = tl.load(zero_row[:, None] + group[None, :], mask=mask, other=8)
        wide = grouped.to(tl.float32) - zero.to(tl.float32)[:, :, None]
    return tl.reshape(wide * scales[:, :, None], [COLUMNS, STEP // 2])


@triton.jit
def _of_e2m1(items):
    """e2m1 to float32: exponent and mantissa are shifted to their places; 0 and 0.5 are handled
    apart."""
    magnitude = (items & 7).to(tl.int32)
    normal = (((magnitude >> 1) + 126) << 23) | ((magnitude & 1) << 22)
    wide = tl.where(magnitude < 2, magnitude * 0.5, normal.to(tl.float32, bitcast=True))
    return tl.where(items > 7, -wide, wide)


@triton.jit
def _add_splits(partial, bias, out, size, num_columns, splits, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.zeros([BLOCK], tl.float32)
    for _ in range(splits):
        total += tl.load(partial + at, mask=inside, other=0.0)
        partial += size
    if bias is not None:
        total += tl.load(bias + at % num_columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)
