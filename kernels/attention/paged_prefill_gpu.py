# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Attention of requests with several new tokens: tiles of queries that loop over their keys.

    a program      some tokens of one request x the query heads of one KV head = rows of a tile
    keys           | before the window | visible to all rows, no mask | masked: the diagonal |
                                       ^ whole tiles                                         ^ own

The kernel is bound by arithmetic. Packing the query heads of a KV head into one tile makes the
diagonal narrow, and gives short chunks (drafts to verify, the end of a prompt) full tiles.

The request of a tile is found on the device, so that the host need not wait for lengths:

    request r owns the tiles from  query_starts[r] // Q + r  on       Q tokens per tile

This gives each request enough tiles, some of them without tokens. Tiles run from the last to the
first: late tokens of a long chunk see the most keys, and the work that starts last should be short.

A short chunk after a long context has too few tiles to occupy a device; its keys are cut into
splits (prefill_splits_gpu.py).

T new tokens, N query heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.attention import prefill_splits_gpu as prefill_splits
from baton.kernels.attention.prefill_splits_gpu import (
    keys_of_split,
    merge_prefill,
    num_splits,
    split_of,
)
from baton.kernels.attention.scoring_gpu import ScoringRules
from baton.kernels.attention.softmax_tile_gpu import first_seen, first_top, scored, weigh
from baton.kernels.gpu.dot import dot
from baton.kernels.paging.arena_gpu import PagedCache, as_computed, load_tile
from baton.kernels.paging.sequences import Sequences

MAX_HEADS = 16
"""Most query heads of a tile; further heads of the same KV head go to other tiles."""


@dataclass(frozen=True, slots=True)
class Tiling:
    rows: int
    keys: int
    num_warps: int
    num_stages: int

    @classmethod
    def of(cls, dtype: torch.dtype, columns: int) -> Tiling:
        """The largest tiles that fit: acc [rows, columns] in registers, and the stages of K and V
        in 227 KB of shared memory."""
        if dtype is torch.float32:  # no tensor cores: small tiles, or registers spill
            return cls(32, 16, 4, 2) if columns <= 128 else cls(16, 16, 4, 2)
        if columns <= 128:  # two groups of four warps, 64 rows each, as Hopper's products want
            return cls(128, 64, 8, 3)
        return cls(64, 64, 4, 2) if columns <= 256 else cls(64, 32, 8, 2)


def paged_prefill(
    q: Tensor,
    out: Tensor,
    cache: PagedCache,
    sequences: Sequences,
    rules: ScoringRules,
    longest: int,
    shortest: int = 2,
) -> None:
    """Write `out` [T, N, H] for the tokens of all requests with `shortest` to `longest` new
    tokens."""
    tiling = Tiling.of(q.dtype, cache.column_tile)
    group = q.shape[1] // cache.num_kv_heads
    heads = min(group, MAX_HEADS)
    head_tiles = triton.cdiv(group, heads)
    tokens = tiling.rows // heads
    num_tiles = len(q) // tokens + sequences.num_requests
    splits = num_splits(len(q) // tokens * cache.num_kv_heads * head_tiles, sequences, rules)
    partial, lse = out, out
    if splits > 1:
        shape = *q.shape[:2], splits
        partial = torch.empty(*shape, cache.width, dtype=torch.float32, device=q.device)
        lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    _attend_tiles[num_tiles, cache.num_kv_heads * head_tiles, splits](
        q, *q.stride()[:2], out, *out.stride()[:2],
        cache.items, cache.block_stride, cache.head_stride,
        cache.scales, *cache.scale_strides,
        sequences.block_tables, sequences.block_tables.stride(0),
        sequences.context_lens, sequences.query_starts, sequences.num_requests,
        longest, shortest, partial, lse, prefill_splits.MIN_SPLIT_KEYS,
        rules.sinks, *rules.numbers(cache.width),
        GROUP=group, HEADS=heads, HEAD_TILES=head_tiles, TOKENS=tokens,
        WIDTH=cache.width, BLOCK_SIZE=cache.block_size, HAS_SCALES=cache.has_scales,
        HAS_SOFTCAP=rules.has_softcap, HAS_WINDOW=rules.window is not None,
        HAS_SINKS=rules.sinks is not None, IS_CHUNKED=rules.is_chunked, NUM_FIRST=rules.num_first,
        ROWS=tiling.rows, KEYS=tiling.keys, COLUMNS=cache.column_tile, IS_SPLIT=splits > 1,
        num_warps=tiling.num_warps, num_stages=tiling.num_stages,
    )  # fmt: skip
    if splits > 1:
        merge_prefill(partial, lse, out, sequences, longest, shortest, tiling.keys)


@triton.jit
def _owner(query_starts, num_requests, tile, TOKENS: tl.constexpr):
    """The last request whose tiles begin at or before `tile`."""
    low = tile.to(tl.int64) * 0  # rows of tables may be far apart
    high = low + num_requests
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_starts + middle) // TOKENS + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _along(
    acc, top, total, q_tile, positions, begin, end, stop,
    items, block_stride, scales, scale_block_stride, table, scale, softcap, window,
    WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr, HAS_SCALES: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_WINDOW: tl.constexpr, IS_CHUNKED: tl.constexpr,
    NUM_FIRST: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Continue the softmax over the keys begin .. end - 1 of a request with `stop` keys."""
    for start in range(begin, end, KEYS):
        key = start + tl.arange(0, KEYS)
        inside = key < stop
        block = tl.load(table + key // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        slot = key % BLOCK_SIZE
        at = block * block_stride + slot * WIDTH
        k = load_tile(items, at, inside, WIDTH, COLUMNS)
        v = load_tile(items + BLOCK_SIZE * WIDTH, at, inside, WIDTH, COLUMNS)
        k = as_computed(k, q_tile.dtype, HAS_SCALES)
        v = as_computed(v, q_tile.dtype, HAS_SCALES)
        products = dot(q_tile, tl.trans(k), tl.zeros([ROWS, KEYS], tl.float32))
        v_scales = products
        if HAS_SCALES:
            at = scales + block * scale_block_stride + slot
            products *= tl.load(at, mask=inside, other=0.0)[None, :]
            v_scales = tl.load(at + BLOCK_SIZE, mask=inside, other=0.0)
        scores = scored(products, scale, softcap, HAS_SOFTCAP)
        visible = inside[None, :]
        if MASKED:
            visible = visible & (key[None, :] <= positions[:, None])
            if HAS_WINDOW:
                seen = first_seen(positions, window, IS_CHUNKED)
                is_seen = (key[None, :] >= seen[:, None]) | (key[None, :] < NUM_FIRST)
                visible = visible & is_seen
        acc, top, total = weigh(acc, top, total, scores, visible, v, v_scales, HAS_SCALES)
    return acc, top, total


@triton.jit(do_not_specialize=["table_stride", "num_requests", "longest", "shortest", "min_keys"])
def _attend_tiles(
    q, q_token_stride, q_head_stride, out, out_token_stride, out_head_stride,
    items, block_stride, head_stride, scales, scale_block_stride, scale_head_stride,
    tables, table_stride, context_lens, query_starts, num_requests, longest, shortest,
    partial, lse, min_keys, sinks, scale, softcap, window,
    GROUP: tl.constexpr, HEADS: tl.constexpr, HEAD_TILES: tl.constexpr, TOKENS: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr, HAS_SCALES: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SINKS: tl.constexpr,
    IS_CHUNKED: tl.constexpr, NUM_FIRST: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr, IS_SPLIT: tl.constexpr,
):  # fmt: skip
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    request = _owner(query_starts, num_requests, tile, TOKENS)
    starts_at = tl.load(query_starts + request)
    num_tokens = (tl.load(query_starts + request + 1) - starts_at).to(tl.int32)
    done = (tile - (starts_at // TOKENS + request)).to(tl.int32) * TOKENS
    if (done >= num_tokens) | (num_tokens < shortest) | (num_tokens > longest):
        return
    past = tl.load(context_lens + request).to(tl.int32) - num_tokens
    kv_head = tl.program_id(1) // HEAD_TILES
    row = tl.arange(0, ROWS)
    of_group = (tl.program_id(1) % HEAD_TILES) * HEADS + row % HEADS
    of_request = done + row // HEADS
    # Rows without a token or a head are computed like the last rows, and not stored.
    used = (row < TOKENS * HEADS) & (of_request < num_tokens) & (of_group < GROUP)
    positions = past + tl.minimum(of_request, num_tokens - 1)
    heads = kv_head * GROUP + of_group
    tokens = starts_at + of_request
    q_tile = load_tile(q, tokens * q_token_stride + heads * q_head_stride, used, WIDTH, COLUMNS)
    stop = past + tl.minimum(done + TOKENS, num_tokens)
    begin, end, open_end = split_of(past, done, num_tokens, stop, min_keys, KEYS, IS_SPLIT)
    if IS_SPLIT:  # noqa: SIM102  # what follows is there only then
        if begin >= stop:
            return
    if HAS_WINDOW:
        begin = first_seen(past + done, window, IS_CHUNKED) // KEYS * KEYS
        # The window of the first row begins here. All tiles from here on need a mask: early ones as
        # windows of later rows begin later, late ones as without a window.
        open_end = begin
    top, total = first_top(sinks, heads, used, HAS_SINKS)
    if IS_SPLIT and HAS_SINKS:  # a sink is the first split's
        top = tl.where(begin == 0, top, float("-inf"))
        total = tl.where(begin == 0, total, 0.0)
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    items += kv_head * head_stride
    scales += kv_head * scale_head_stride
    table = tables + request * table_stride
    if not HAS_WINDOW:
        acc, top, total = _along(
            acc, top, total, q_tile, positions, begin, open_end, stop,
            items, block_stride, scales, scale_block_stride, table, scale, softcap, window,
            WIDTH, BLOCK_SIZE, HAS_SCALES, HAS_SOFTCAP, HAS_WINDOW, IS_CHUNKED, NUM_FIRST, False,
            ROWS, KEYS, COLUMNS,
        )  # fmt: skip
    if NUM_FIRST > 0:
        first_end = tl.minimum(tl.cdiv(NUM_FIRST, KEYS) * KEYS, begin)
        acc, top, total = _along(
            acc, top, total, q_tile, positions, 0, first_end, stop,
            items, block_stride, scales, scale_block_stride, table, scale, softcap, window,
            WIDTH, BLOCK_SIZE, HAS_SCALES, HAS_SOFTCAP, HAS_WINDOW, IS_CHUNKED, NUM_FIRST, True,
            ROWS, KEYS, COLUMNS,
        )  # fmt: skip
    acc, top, total = _along(
        acc, top, total, q_tile, positions, open_end, end, stop,
        items, block_stride, scales, scale_block_stride, table, scale, softcap, window,
        WIDTH, BLOCK_SIZE, HAS_SCALES, HAS_SOFTCAP, HAS_WINDOW, IS_CHUNKED, NUM_FIRST, True,
        ROWS, KEYS, COLUMNS,
    )  # fmt: skip
    columns = tl.arange(0, COLUMNS)
    kept = used[:, None] & (columns < WIDTH)[None, :]
    if IS_SPLIT:
        context = past + num_tokens
        if context > keys_of_split(context, tl.num_programs(2), min_keys, KEYS):
            weight = tl.where(total == 0.0, 1.0, total)  # of rows that saw nothing `top` is -inf
            row_of_heads = tokens * (tl.num_programs(1) // HEAD_TILES * GROUP) + heads
            at = row_of_heads * tl.num_programs(2) + tl.program_id(2)
            tl.store(lse + at, top + tl.log2(weight), mask=used)
            columns_at = at[:, None] * WIDTH + columns[None, :]
            tl.store(partial + columns_at, acc / weight[:, None], mask=kept)
            return
    at = (tokens * out_token_stride + heads * out_head_stride)[:, None] + columns[None, :]
    tl.store(out + at, (acc / total[:, None]).to(out.dtype.element_ty), mask=kept)
