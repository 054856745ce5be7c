# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Gathers K and V of some tokens of a request from their blocks into contiguous tensors.

    arena, table  -->  k, v [K, L, H]      tokens first .. stop - 1, then zeros up to L

8-bit items are dequantized. One program handles 64 tokens of a head. Attention of a library cannot
read a block table, so this pass over memory is the price of using one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.paging.arena_gpu import PagedCache, load_tile

TOKENS = 64


def gather_kv(
    cache: PagedCache, table: Tensor, tokens: range, length: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """k and v [K, length, H] of a request with the block table [M]."""
    shape = cache.num_kv_heads, length, cache.width
    k, v = torch.empty(2, *shape, dtype=dtype, device=table.device)
    _gather[triton.cdiv(length, TOKENS), cache.num_kv_heads](
        cache.items, cache.block_stride, cache.head_stride, cache.scales, *cache.scale_strides,
        table, tokens.start, tokens.stop, k, v, length,
        WIDTH=cache.width, COLUMNS=cache.column_tile, BLOCK_SIZE=cache.block_size,
        HAS_SCALES=cache.has_scales, TOKENS=TOKENS, num_warps=4,
    )  # fmt: skip
    return k, v


@triton.jit(do_not_specialize=["first", "stop", "length"], do_not_specialize_on_alignment=["table"])
def _gather(
    items, block_stride, head_stride, scales, scale_block_stride, scale_head_stride,
    table, first, stop, k, v, length,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HAS_SCALES: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    token = first + place
    inside = token < stop
    block = tl.load(table + token // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
    slot = token % BLOCK_SIZE
    at = block * block_stride + head * head_stride + slot * WIDTH
    columns = tl.arange(0, COLUMNS)
    to = ((head * length + place) * WIDTH)[:, None] + columns[None, :]
    kept = (place < length)[:, None] & (columns < WIDTH)[None, :]
    keys = load_tile(items, at, inside, WIDTH, COLUMNS)
    values = load_tile(items + BLOCK_SIZE * WIDTH, at, inside, WIDTH, COLUMNS)
    if HAS_SCALES:
        at = scales + block * scale_block_stride + head * scale_head_stride + slot
        of_keys = tl.load(at, mask=inside, other=0.0)
        of_values = tl.load(at + BLOCK_SIZE, mask=inside, other=0.0)
        keys = keys.to(tl.float32) * of_keys[:, None]
        values = values.to(tl.float32) * of_values[:, None]
    tl.store(k + to, keys.to(k.dtype.element_ty), mask=kept)
    tl.store(v + to, values.to(v.dtype.element_ty), mask=kept)
