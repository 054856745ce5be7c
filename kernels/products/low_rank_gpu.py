# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Low-rank updates of a product, with another adapter for each row.

    inner [splits, T, P, R] = x D^T      a program: a part, one of the splits of K, some rows
    y [T, N] += inner U                  a program: COLUMNS of a part, some rows

Rows lie in tiles of ROWS. The first row of each adapter in a tile computes for all rows of the tile
that have the same one, so the matrix is read once for those. Programs find out on the device what
they have to do, so a graph serves passes with any adapters. Tiles and splits do not depend on the
number of rows, so neither do the bits of a row.

The inner values are float32. To multiply them by U in a narrower dtype, they are split into two of
that dtype, the second of which is what the first lost.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.gpu.dot import dot

ROWS = 16
COLUMNS = 128
STEP = 64
"""Inputs, or ranks, of a step."""
SPLIT_ITEMS = 512
FEW_ROWS = 128
"""Up to so many rows, each row of a tile has a program, so that many adapters are read at once.
With more rows, a program computes for all adapters of its tile in turn."""


def add_low_rank_(
    y: Tensor, x: Tensor, down: Tensor, up: Tensor, parts: tuple[int, ...], numbers: Tensor
) -> None:
    """See `low_rank.add_low_rank_`; checked."""
    (num_rows, width), num_columns = x.shape, y.shape[1]
    _, num_parts, rank, _ = down.shape
    if num_rows == 0:
        return
    at_once = ROWS if num_rows <= FEW_ROWS else 1
    programs = triton.cdiv(num_rows, ROWS) * at_once
    splits = triton.cdiv(width, SPLIT_ITEMS)
    blocks = sum(triton.cdiv(outputs, COLUMNS) for outputs in parts)
    inner = torch.empty(splits, num_rows, num_parts, rank, dtype=torch.float32, device=x.device)
    ranks = max(16, triton.next_power_of_2(rank))
    _multiply_down[programs, num_parts, splits](
        x, x.stride(0), down, numbers, inner, num_rows, width, rank,
        SPLIT=SPLIT_ITEMS, STEP=STEP, ROWS=ROWS, RANKS=ranks, AT_ONCE=at_once,
        num_warps=max(4, ranks // 32),
    )  # fmt: skip
    _multiply_up[programs, blocks](
        inner, up, numbers, y, num_rows, num_columns, rank, splits,
        PARTS=parts, ROWS=ROWS, COLUMNS=COLUMNS, RANKS=min(ranks, STEP), AT_ONCE=at_once,
        num_warps=4,
    )  # fmt: skip


@triton.jit
def _first_of(numbers, i, ROWS: tl.constexpr):
    """The number of row i of a tile if it has an adapter and is the first row with it, else 0."""
    place = tl.arange(0, ROWS)
    number = tl.sum(tl.where(place == i, numbers, 0), 0)
    num_before = tl.sum(((numbers == number) & (place < i)).to(tl.int32), 0)
    return tl.where(num_before == 0, number, 0)


@triton.jit(do_not_specialize=["num_rows"])
def _multiply_down(
    x, x_stride, down, numbers, inner, num_rows, width, rank,
    SPLIT: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) // AT_ONCE * ROWS + tl.arange(0, ROWS)
    part, num_parts, split = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    each = tl.arange(0, RANKS)
    is_rank = each < rank
    number_of = tl.load(numbers + row, mask=row < num_rows, other=0)
    for i in range(tl.program_id(0) % AT_ONCE, ROWS, AT_ONCE):
        number = _first_of(number_of, i, ROWS)
        if number > 0:
            is_mine = number_of == number
            matrix = down + ((number - 1) * num_parts + part) * rank * width
            acc = tl.zeros([RANKS, ROWS], tl.float32)
            for at in range(split * SPLIT, tl.minimum((split + 1) * SPLIT, width), STEP):
                item = at + tl.arange(0, STEP)
                inside = item < width
                weight = tl.load(
                    matrix + each[:, None] * width + item[None, :],
                    mask=is_rank[:, None] & inside[None, :], other=0.0,
                )  # fmt: skip
                x_tile = tl.load(
                    x + row.to(tl.int64)[None, :] * x_stride + item[:, None],
                    mask=inside[:, None] & is_mine[None, :], other=0.0,
                )  # fmt: skip
                acc = dot(weight, x_tile, acc)
            to = (split.to(tl.int64) * num_rows + row) * num_parts + part
            mask = is_rank[:, None] & is_mine[None, :]
            tl.store(inner + to[None, :] * rank + each[:, None], acc, mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def _multiply_up(
    inner, up, numbers, y, num_rows, num_columns, rank, splits,
    PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, RANKS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) // AT_ONCE * ROWS + tl.arange(0, ROWS)
    # The part in which the columns lie: the last that begins at or before their block.
    num_parts: tl.constexpr = len(PARTS)
    block = tl.program_id(1)
    part, first, stop = 0, block * COLUMNS, 0
    start = 0
    before = 0
    for p in tl.static_range(num_parts):
        if block >= before:
            part = p
            first = start + (block - before) * COLUMNS
            stop = start + PARTS[p]
        before += tl.cdiv(PARTS[p], COLUMNS)
        start += PARTS[p]
    column = first + tl.arange(0, COLUMNS)
    is_column = column < stop
    number_of = tl.load(numbers + row, mask=row < num_rows, other=0)
    for i in range(tl.program_id(0) % AT_ONCE, ROWS, AT_ONCE):
        number = _first_of(number_of, i, ROWS)
        if number > 0:
            is_mine = number_of == number
            matrix = up + (number - 1) * rank * num_columns
            acc = tl.zeros([COLUMNS, ROWS], tl.float32)
            for at in range(0, rank, RANKS):
                each = at + tl.arange(0, RANKS)
                is_rank = each < rank
                mask = is_rank[:, None] & is_mine[None, :]
                values = tl.zeros([RANKS, ROWS], tl.float32)
                for split in range(splits):
                    of = (tl.cast(split, tl.int64) * num_rows + row) * num_parts + part
                    values += tl.load(
                        inner + of[None, :] * rank + each[:, None], mask=mask, other=0.0
                    )
                weight = tl.load(
                    matrix + each[None, :] * num_columns + column[:, None],
                    mask=is_column[:, None] & is_rank[None, :], other=0.0,
                )  # fmt: skip
                if weight.dtype == tl.float32:
                    acc = dot(weight, values, acc)
                else:
                    near = values.to(weight.dtype)
                    acc = dot(weight, near, acc)
                    acc = dot(weight, (values - near.to(tl.float32)).to(weight.dtype), acc)
            to = y + row.to(tl.int64)[None, :] * num_columns + column[:, None]
            mask = is_column[:, None] & is_mine[None, :]
            total = tl.load(to, mask=mask, other=0.0).to(tl.float32) + acc
            tl.store(to, total.to(y.dtype.element_ty), mask=mask)
