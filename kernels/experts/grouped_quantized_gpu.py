# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Grouped products with quantized weights:   y[p] = W[g] x[p]   g the group of row p.

Rows are assigned to programs as in kernels/experts/grouped_linear_gpu.py, and items are widened in
registers as in kernels/products/linear_gpu.py: W is read once per tile of rows and is never
dequantized in memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.experts.grouped_linear_gpu import FEW_ROWS, Rows, places_of, tile_of
from baton.kernels.gpu.dot import dot
from baton.kernels.products.linear_gpu import times_scales

STEP = 128


def grouped_quantized(
    x: Tensor,
    items: Tensor,
    scales: Tensor,
    stops: Tensor,
    *,
    group: tuple[int, int],
    zeros: Tensor | None = None,
    rows_of: Rows | None = None,
    bias: Tensor | None = None,
    is_batch_invariant: bool = False,
) -> Tensor:
    """x [P, K], items [E, N, K or K / 2], scales [E, N / group[0], K / group[1]], bias [E, N] ->
    [P, N]; rows may be placed by `rows_of`. `is_batch_invariant`: results are batch-invariant."""
    x = x.contiguous()
    width, (num_groups, num_columns, _) = x.shape[1], items.shape
    num_rows = len(x) if rows_of is None else len(rows_of.pairs)
    out = torch.empty(num_rows, num_columns, dtype=x.dtype, device=x.device)
    few = num_rows < FEW_ROWS * num_groups and not is_batch_invariant
    rows, columns = (16, 64) if few else (64, 64)
    max_tiles = triton.cdiv(num_rows, rows) + num_groups
    _multiply[triton.cdiv(num_columns, columns), max_tiles](
        x, items, scales, zeros, stops, out,
        num_columns, width, items.shape[2], scales.shape[1], scales.shape[2],
        None if rows_of is None else rows_of.pairs,
        None if rows_of is None else rows_of.shares, bias,
        CHOICES=0 if rows_of is None else rows_of.num_choices,
        IS_SCATTERED=rows_of is not None and rows_of.is_scattered,
        NUM_GROUPS=num_groups, GROUPS=triton.next_power_of_2(num_groups),
        GROUP_ROWS=group[0], GROUP=group[1] or width, IS_4_BIT=items.dtype is torch.uint8,
        IS_SCALED_LATE=not group[1],
        ROWS=rows, COLUMNS=columns, STEP=STEP,
        num_warps=4, num_stages=4 if few else 3,
    )  # fmt: skip
    return out


@triton.jit
def _multiply(
    x, items, scales, zeros, stops, out,
    num_columns, width, row_bytes, scale_rows, scale_columns, of_pairs, shares, bias,
    CHOICES: tl.constexpr, IS_SCATTERED: tl.constexpr,
    NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr,
    GROUP_ROWS: tl.constexpr, GROUP: tl.constexpr, IS_4_BIT: tl.constexpr,
    IS_SCALED_LATE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    mine, start, stop = tile_of(tl.program_id(1), stops, NUM_GROUPS, GROUPS, ROWS)
    if mine >= NUM_GROUPS:
        return
    row = (start + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < stop, column < num_columns
    source, target, factors = places_of(row, is_row, of_pairs, shares, CHOICES, IS_SCATTERED)
    expert = mine.to(tl.int64)
    weight_row = items + (expert * num_columns + column) * row_bytes
    scale_row = scales + (expert * scale_rows + column // GROUP_ROWS) * scale_columns
    zero_column = expert * num_columns + column
    x_row = x + source * width
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    for at in range(0, width, STEP):
        if IS_4_BIT:
            byte = at // 2 + tl.arange(0, STEP // 2)
            item = byte // (GROUP // 2) * GROUP + byte % (GROUP // 2)
            inside = item < width
            mask = is_column[:, None] & inside[None, :]
            pairs = tl.load(weight_row[:, None] + byte[None, :], mask=mask, other=0)
            low = times_scales(
                pairs & 15, scale_row, zeros, zero_column, width, at, is_column, width,
                COLUMNS, STEP, GROUP,
            ).to(x.dtype.element_ty)  # fmt: skip
            high = times_scales(
                pairs >> 4, scale_row, zeros, zero_column, width, at, is_column, width,
                COLUMNS, STEP, GROUP,
            ).to(x.dtype.element_ty)  # fmt: skip
            x_mask = inside[:, None] & is_row[None, :]
            x_low = tl.load(x_row[None, :] + item[:, None], mask=x_mask, other=0.0)
            x_high = tl.load(x_row[None, :] + item[:, None] + GROUP // 2, mask=x_mask, other=0.0)
            if shares is not None:
                x_low = (x_low.to(tl.float32) * factors[None, :]).to(x_low.dtype)
                x_high = (x_high.to(tl.float32) * factors[None, :]).to(x_high.dtype)
            acc = dot(low, x_low, acc)
            acc = dot(high, x_high, acc)
        else:
            item = at + tl.arange(0, STEP)
            inside = item < width
            mask = is_column[:, None] & inside[None, :]
            x_mask = inside[:, None] & is_row[None, :]
            weight = tl.load(weight_row[:, None] + item[None, :], mask=mask, other=0.0)
            x_tile = tl.load(x_row[None, :] + item[:, None], mask=x_mask, other=0.0)
            if shares is not None:
                x_tile = (x_tile.to(tl.float32) * factors[None, :]).to(x_tile.dtype)
            weight = weight.to(tl.float32).to(x_tile.dtype)
            if IS_SCALED_LATE:
                acc = dot(weight, x_tile, acc)
            else:  # a step lies within one group
                scale = tl.load(scale_row + at // GROUP, mask=is_column, other=0.0)
                none = tl.zeros([COLUMNS, ROWS], tl.float32)
                acc += dot(weight, x_tile, none) * scale[:, None]
    if IS_SCALED_LATE:
        acc *= tl.load(scale_row, mask=is_column, other=0.0)[:, None]
    if bias is not None:
        of_expert = bias + expert * num_columns
        acc += tl.load(of_expert + column, mask=is_column, other=0.0).to(tl.float32)[:, None]
    tl.store(
        out + (target * num_columns)[None, :] + column[:, None],
        acc.to(out.dtype.element_ty),
        mask=is_column[:, None] & is_row[None, :],
    )
