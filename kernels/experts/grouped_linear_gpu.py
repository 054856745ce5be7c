# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Grouped products: rows are sorted by group, and each group has a matrix of its own.

    y[p] = W[g] x[p]      g the group of row p      [P, K] x [E, N, K] -> [P, N]

    tiles of rows    | group 0: 0 1 2 | group 1: 3 | group 3: 4 5 | none ...      at most P/ROWS + E

Rows of x may stay at their tokens, and results may be stored at their pairs, without sorting in
memory: see `Rows`.

A program finds its tile from the ends of the groups, so the host reads nothing back. The grid has
the largest possible number of tiles, and programs beyond the last tile end at once. Programs of one
tile of rows are adjacent, so that W, the larger operand, is read from the cache by the other tiles
of the group.

bfloat16 with many rows uses torch's `grouped_mm` (CUTLASS), which supports empty groups and reads
the ends on the device, too. With tiles of one size, results are batch-invariant.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from baton.kernels.gpu.dot import dot

LIBRARY_ROWS = 64
"""Rows per group, on average, from which the library is faster."""
FEW_ROWS = 32
"""Rows per group, on average, below which tiles have few rows."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Rows:
    """Where the rows of sorted pairs are in x and in the output."""

    pairs: Tensor
    """[P] int32, sorted by group"""
    num_choices: int = 0
    """Number of consecutive pairs that share a row of x; 0: x is sorted."""
    is_scattered: bool = False
    """Whether results are stored in the order of pair numbers instead of sorted."""
    shares: Tensor | None = None
    """float32 [P], by pair number: factors of x; None: 1."""

    def load(self, x: Tensor) -> Tensor:
        """x [T, K], or sorted [P, K] -> sorted [P, K]"""
        if self.num_choices:
            x = x[self.pairs // self.num_choices]
        return x if self.shares is None else (x * self.shares[self.pairs, None]).to(x.dtype)


def grouped_linear(x: Tensor, weights: Tensor, stops: Tensor) -> Tensor:
    if has_library(x, weights, len(x)):
        return functional.grouped_mm(x, weights.transpose(1, 2), offs=stops)
    return grouped_tiles(x, weights, stops)


def has_library(x: Tensor, weights: Tensor, num_rows: int) -> bool:
    """Whether the library supports the product and is faster. Its rows must be multiples of 16
    bytes apart."""
    is_aligned = x.shape[1] % 8 == 0 and weights.shape[1] % 8 == 0
    is_there = x.is_cuda and x.dtype is torch.bfloat16 and is_aligned
    return is_there and num_rows >= LIBRARY_ROWS * len(weights)


def grouped_tiles(
    x: Tensor,
    weights: Tensor,
    stops: Tensor,
    rows_of: Rows | None = None,
    bias: Tensor | None = None,
    *,
    is_batch_invariant: bool = False,
) -> Tensor:
    """x [P, K] by group, weights [E, N, K], bias [E, N] -> [P, N]; rows may be placed by `rows_of`.
    `is_batch_invariant`: results are batch-invariant."""
    x, weights = x.contiguous(), weights.contiguous()
    width, (num_groups, num_columns, _) = x.shape[1], weights.shape
    num_rows = len(x) if rows_of is None else len(rows_of.pairs)
    out = torch.empty(num_rows, num_columns, dtype=x.dtype, device=x.device)
    # A group with few rows is bound by the bytes of its matrix, one with many by arithmetic.
    few = num_rows < FEW_ROWS * num_groups and not is_batch_invariant
    rows, columns = (16, 64) if few else (64, 128)
    max_tiles = triton.cdiv(num_rows, rows) + num_groups
    _multiply[triton.cdiv(num_columns, columns), max_tiles](
        x, weights, stops, out, num_columns, width,
        None if rows_of is None else rows_of.pairs,
        None if rows_of is None else rows_of.shares, bias,
        CHOICES=0 if rows_of is None else rows_of.num_choices,
        IS_SCATTERED=rows_of is not None and rows_of.is_scattered,
        NUM_GROUPS=num_groups, GROUPS=triton.next_power_of_2(num_groups),
        ROWS=rows, COLUMNS=columns, STEP=64,
        num_warps=4, num_stages=4,
    )  # fmt: skip
    return out


@triton.jit
def tile_of(
    tile, stops, NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """The group of a tile (NUM_GROUPS after the last), its first row, and the end of the group."""
    group = tl.arange(0, GROUPS)
    is_group = group < NUM_GROUPS
    group_stops = tl.load(stops + group, mask=is_group, other=0)
    group_starts = tl.load(stops + group - 1, mask=is_group & (group > 0), other=0)
    num_tiles = tl.where(is_group, (group_stops - group_starts + ROWS - 1) // ROWS, 0)
    last_tiles = tl.cumsum(num_tiles, 0)
    mine = tl.sum((is_group & (last_tiles <= tile)).to(tl.int32), 0)
    is_mine = group == mine
    start = tl.sum(tl.where(is_mine, group_starts, 0), 0)
    stop = tl.sum(tl.where(is_mine, group_stops, 0), 0)
    first_tile = tl.sum(tl.where(is_mine, last_tiles - num_tiles, 0), 0)
    return mine, start + (tile - first_tile) * ROWS, stop


@triton.jit
def places_of(row, is_row, pairs, shares, CHOICES: tl.constexpr, IS_SCATTERED: tl.constexpr):
    """Rows of x and of the output for sorted pairs, and the factors of x."""
    source, target, factors = row, row, tl.where(is_row, 1.0, 0.0)
    if pairs is not None:
        pair = tl.load(pairs + row, mask=is_row, other=0).to(tl.int64)
        if CHOICES > 0:
            source = pair // CHOICES
        if IS_SCATTERED:
            target = pair
        if shares is not None:
            factors = tl.load(shares + pair, mask=is_row, other=0.0)
    return source, target, factors


@triton.jit
def _multiply(
    x, weights, stops, out, num_columns, width, pairs, shares, bias,
    CHOICES: tl.constexpr, IS_SCATTERED: tl.constexpr,
    NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    mine, start, stop = tile_of(tl.program_id(1), stops, NUM_GROUPS, GROUPS, ROWS)
    if mine >= NUM_GROUPS:
        return
    row = (start + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < stop, column < num_columns
    source, target, factors = places_of(row, is_row, pairs, shares, CHOICES, IS_SCATTERED)
    weight_row = weights + (mine.to(tl.int64) * num_columns + column) * width
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    for at in range(0, width, STEP):
        item = at + tl.arange(0, STEP)
        inside = item < width
        weight = tl.load(
            weight_row[:, None] + item[None, :],
            mask=is_column[:, None] & inside[None, :],
            other=0.0,
        )
        x_tile = tl.load(
            x + (source * width)[None, :] + item[:, None],
            mask=inside[:, None] & is_row[None, :],
            other=0.0,
        )
        if shares is not None:
            x_tile = (x_tile.to(tl.float32) * factors[None, :]).to(x_tile.dtype)
        acc = dot(weight, x_tile, acc)
    if bias is not None:
        of_group = bias + mine.to(tl.int64) * num_columns
        acc += tl.load(of_group + column, mask=is_column, other=0.0).to(tl.float32)[:, None]
    tl.store(
        out + (target * num_columns)[None, :] + column[:, None],
        acc.to(out.dtype.element_ty),
        mask=is_column[:, None] & is_row[None, :],
    )
