# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Multiplies each head by a matrix of its own, with the same tiles for any number of rows.

    y[t, n] = W[n] x[t, n]      x [T, N, I], W [N, O, I], y [T, N, O]

    a program    COLUMNS outputs of ROWS tokens of one head, over all of I

There are many heads and I is small, so I is not split, and results are batch-invariant. W may have
any strides: for latent attention, the matrix of one direction is a transposed view of the other.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.gpu.dot import dot

ROWS, COLUMNS, STEP = 64, 64, 64


def head_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, N, I], weight [N, O, I] -> [T, N, O]. The last dimension of x must be contiguous."""
    (num_tokens, num_heads, width), num_columns = x.shape, weight.shape[1]
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty(num_tokens, num_heads, num_columns, dtype=x.dtype, device=x.device)
    if num_tokens:
        _multiply[triton.cdiv(num_columns, COLUMNS), triton.cdiv(num_tokens, ROWS), num_heads](
            x, *x.stride()[:2], weight, *weight.stride(), out, num_tokens, num_columns, width,
            ROWS=ROWS, COLUMNS=COLUMNS, STEP=STEP, num_warps=4, num_stages=3,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_tokens"])
def _multiply(
    x, x_token_stride, x_head_stride, weight, head_stride, row_stride, item_stride,
    out, num_tokens, num_columns, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(2).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    token = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_column, is_token = column < num_columns, token < num_tokens
    weight_row = weight + head * head_stride + column * row_stride
    x_row = x + token * x_token_stride + head * x_head_stride
    acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    for at in range(0, width, STEP):
        item = at + tl.arange(0, STEP)
        inside = item < width
        tile = tl.load(
            weight_row[:, None] + (item * item_stride)[None, :],
            mask=is_column[:, None] & inside[None, :],
            other=0.0,
        )
        x_tile = tl.load(
            x_row[None, :] + item[:, None], mask=inside[:, None] & is_token[None, :], other=0.0
        )
        acc = dot(tile, x_tile, acc)
    at = (token * tl.num_programs(2) + head) * num_columns
    tl.store(
        out + at[None, :] + column[:, None],
        acc.to(out.dtype.element_ty),
        mask=is_column[:, None] & is_token[None, :],
    )
