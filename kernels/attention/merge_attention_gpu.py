# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Merges two attention results of the same queries over different keys, in place.

    weight = 1 / (1 + e^(lse - other_lse))      the share of `other` in both sums
    out    = out + weight (other - out)         lse = log(e^lse + e^other_lse)

out and other [T, N, H], lse [N, T] float32. One program handles a few tokens of a head.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.paging.arena_gpu import load_tile

ROWS = 16


def merge_attention(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Update `out` and `lse` to cover the keys of both."""
    num_tokens, num_heads, width = out.shape
    _merge[triton.cdiv(num_tokens, ROWS), num_heads](
        out, *out.stride()[:2], lse, lse.stride(0),
        other, *other.stride()[:2], other_lse, other_lse.stride(0), num_tokens,
        WIDTH=width, COLUMNS=triton.next_power_of_2(width), ROWS=ROWS, num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["lse_stride", "other_lse_stride", "num_tokens"])
def _merge(
    out, out_token_stride, out_head_stride, lse, lse_stride,
    other, other_token_stride, other_head_stride, other_lse, other_lse_stride, num_tokens,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    token = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    inside = token < num_tokens
    mine = tl.load(lse + head * lse_stride + token, mask=inside, other=0.0)
    others = tl.load(other_lse + head * other_lse_stride + token, mask=inside, other=0.0)
    weight = 1.0 / (1.0 + tl.exp(mine - others))
    rows = token * out_token_stride + head * out_head_stride
    a = load_tile(out, rows, inside, WIDTH, COLUMNS).to(tl.float32)
    rows_of_other = token * other_token_stride + head * other_head_stride
    b = load_tile(other, rows_of_other, inside, WIDTH, COLUMNS).to(tl.float32)
    columns = tl.arange(0, COLUMNS)
    tl.store(
        out + rows[:, None] + columns[None, :],
        (a + weight[:, None] * (b - a)).to(out.dtype.element_ty),
        mask=inside[:, None] & (columns < WIDTH)[None, :],
    )
    larger = tl.maximum(mine, others)
    joined = larger + tl.log(tl.exp(mine - larger) + tl.exp(others - larger))
    tl.store(lse + head * lse_stride + token, joined, mask=inside)
