# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Head norm, rotary positions and the store into the cache, in one pass over qkv.

    a program     some tokens of one head: of a query, a key or a value
    query         norm, rotate --> q [T, N, H]
    key           norm, rotate --> the arena; quantized to 8 bits with a scale if the arena is
    value                      --> the arena, likewise

Bound by memory, and by the launch when few tokens decode; it replaces four kernels and a dozen
small ones. Each step rounds to the dtype of qkv, as the definition does. Each thread loads both
columns that rotate together; the second load of a column comes from the L1 cache, and no part of a
head needs a layout of its own.

T new tokens, N query heads, K KV heads, H head width, R <= H the part of a head that rotates.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.cache_write.rotation import HeadNorm, Rotation
from baton.kernels.gpu.owner import owner_of
from baton.kernels.paging.arena_gpu import PagedCache
from baton.kernels.paging.kv_quantize import LARGEST
from baton.kernels.paging.sequences import Sequences

FEW_TOKENS = 256
"""Most tokens of a pass for which a program takes one token, so that there are enough programs."""
MANY = 8
INTEGERS_ONLY = tl.constexpr(1.5 * 2.0**23)
"""Adding and subtracting it rounds to integers, as kernels/paging/kv_quantize.py does."""


def rope_kv_write(
    qkv: Tensor,
    cache: PagedCache,
    sequences: Sequences,
    head_norm: HeadNorm | None = None,
    rotation: Rotation | None = None,
    *,
    is_batch_invariant: bool = False,
) -> Tensor:
    """qkv [T, N + 2K, H] -> the queries [T, N, H], ready for attention.

    `is_batch_invariant`: results must be batch-invariant. The order of additions in a norm depends
    on the number of tokens of a program, so that number is fixed then.
    """
    num_tokens, num_heads, width = qkv.shape
    num_queries = num_heads - 2 * cache.num_kv_heads
    q = torch.empty(num_tokens, num_queries, width, dtype=qkv.dtype, device=qkv.device)
    tile = 1 if is_batch_invariant or num_tokens <= FEW_TOKENS else MANY
    columns = triton.next_power_of_2(width)
    cos, sin = (qkv, qkv) if rotation is None else rotation
    norm = HeadNorm(qkv, qkv, 0.0) if head_norm is None else head_norm
    _write[triton.cdiv(num_tokens, tile), num_heads](
        qkv, *qkv.stride()[:2], q, num_tokens, num_queries,
        cache.items, cache.block_stride, cache.head_stride, cache.scales, *cache.scale_strides,
        sequences.block_tables, sequences.block_tables.stride(0), sequences.positions,
        sequences.query_starts, sequences.num_requests,
        cos, sin, norm.q_weight, norm.k_weight, norm.eps,
        KV_HEADS=cache.num_kv_heads, WIDTH=width, COLUMNS=columns, TOKENS=tile,
        HALF=0 if rotation is None else cos.shape[-1], HAS_NORM=head_norm is not None,
        BLOCK_SIZE=cache.block_size, LARGEST_ITEM=LARGEST.get(cache.items.dtype, 0.0),
        num_warps=1 if tile * columns <= 256 else 4,
    )  # fmt: skip
    return q


@triton.jit
def _normalised(x, mean_of, weight, columns, inside, eps, WIDTH: tl.constexpr):
    """x over the root mean square of `mean_of`, times the weight; rounded to the dtype of x."""
    wide = mean_of.to(tl.float32)
    factor = tl.rsqrt(tl.sum(wide * wide, 1) / WIDTH + eps)
    weights = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    return (x.to(tl.float32) * factor[:, None] * weights[None, :]).to(x.dtype)


@triton.jit
def _heads(
    qkv, token, inside, head, token_stride, head_stride, cos, sin, weight, eps,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, HALF: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """[tokens, columns] of one head, normalised and rotated."""
    columns = tl.arange(0, COLUMNS)
    rows = qkv + (token * token_stride + head * head_stride)[:, None]
    kept = inside[:, None] & (columns < WIDTH)[None, :]
    plain = tl.load(rows + columns[None, :], mask=kept, other=0.0)
    x = plain
    if HAS_NORM:
        x = _normalised(x, plain, weight, columns, columns < WIDTH, eps, WIDTH)
    if HALF > 0:
        other_column = tl.where(columns < HALF, columns + HALF, columns - HALF)
        rotates = columns < 2 * HALF
        both = inside[:, None] & rotates[None, :]
        other = tl.load(rows + other_column[None, :], mask=both, other=0.0)
        if HAS_NORM:
            other = _normalised(other, plain, weight, other_column, rotates, eps, WIDTH)
        at = token[:, None] * HALF + (columns % HALF)[None, :]
        c = tl.load(cos + at, mask=both, other=1.0)
        s = tl.load(sin + at, mask=both, other=0.0)
        s = tl.where((columns < HALF)[None, :], -s, s)
        x = (x.to(tl.float32) * c + other.to(tl.float32) * s).to(x.dtype)
    return x


@triton.jit
def _quantized(x, LARGEST_ITEM: tl.constexpr, items):
    """(items, scales) of x [tokens, columns], as kernels/paging/kv_quantize.py defines them."""
    is_number = tl.sum((x != x).to(tl.int32), 1) == 0
    x = tl.where(is_number[:, None], x, 0.0)
    scales = tl.div_rn(tl.max(tl.abs(x), 1), tl.full([x.shape[0]], LARGEST_ITEM, tl.float32))
    divisors = tl.where(scales > 0, scales, 1.0)
    x = tl.div_rn(x, tl.broadcast_to(divisors[:, None], x.shape))
    x = tl.minimum(tl.maximum(x, -LARGEST_ITEM), LARGEST_ITEM)
    if items.dtype.element_ty == tl.int8:
        x = (x + INTEGERS_ONLY) - INTEGERS_ONLY
    return x.to(items.dtype.element_ty), tl.where(is_number, scales, float("nan"))


@triton.jit(do_not_specialize=["table_stride", "num_tokens", "num_requests"])
def _write(
    qkv, token_stride, qkv_head_stride, q, num_tokens, num_queries,
    items, block_stride, head_stride, scales, scale_block_stride, scale_head_stride,
    tables, table_stride, positions, query_starts, num_requests,
    cos, sin, q_weight, k_weight, eps,
    KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TOKENS: tl.constexpr,
    HALF: tl.constexpr, HAS_NORM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    LARGEST_ITEM: tl.constexpr,
):  # fmt: skip
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    head = tl.program_id(1)
    inside = token < num_tokens
    columns = tl.arange(0, COLUMNS)
    kept = inside[:, None] & (columns < WIDTH)[None, :]
    if head < num_queries:
        x = _heads(
            qkv, token, inside, head, token_stride, qkv_head_stride, cos, sin, q_weight, eps,
            WIDTH, COLUMNS, HALF, HAS_NORM,
        )  # fmt: skip
        rows = (token * num_queries + head) * WIDTH
        tl.store(q + rows[:, None] + columns[None, :], x, mask=kept)
        return
    of_values = head >= num_queries + KV_HEADS
    if of_values:
        x = _heads(
            qkv, token, inside, head, token_stride, qkv_head_stride, cos, sin, k_weight, eps,
            WIDTH, COLUMNS, 0, False,
        )  # fmt: skip
    else:
        x = _heads(
            qkv, token, inside, head, token_stride, qkv_head_stride, cos, sin, k_weight, eps,
            WIDTH, COLUMNS, HALF, HAS_NORM,
        )  # fmt: skip
    kv_head = head - num_queries - of_values.to(tl.int32) * KV_HEADS
    position = tl.load(positions + token, mask=inside, other=0)
    request = owner_of(query_starts, num_requests, token)
    at = tables + request * table_stride + position // BLOCK_SIZE
    block = tl.load(at, mask=inside, other=0).to(tl.int64)
    slot = of_values.to(tl.int32) * BLOCK_SIZE + position % BLOCK_SIZE
    wide = x.to(tl.float32)
    wide = tl.where(tl.abs(wide) < float("inf"), wide, float("nan"))
    at = items + (block * block_stride + kv_head * head_stride + slot * WIDTH)[:, None]
    if LARGEST_ITEM > 0:
        stored, of_row = _quantized(wide, LARGEST_ITEM, items)
        tl.store(at + columns[None, :], stored, mask=kept)
        at = scales + block * scale_block_stride + kv_head * scale_head_stride + slot
        tl.store(at, of_row, mask=inside)
    else:
        tl.store(at + columns[None, :], wide.to(items.dtype.element_ty), mask=kept)
