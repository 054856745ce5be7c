# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Attention of requests with one new token: their context is cut into splits, read side by side.

    splits of a request    | 0 .. L - 1 | L .. 2L - 1 | ... context - 1      L keys each
    a program              one request, some query heads of one KV head; every W-th split
    of each split          softmax within it [heads, H] and log2 of its total weight
    merged                 sum 2^lse out / sum 2^lse, the sink being a split without a value

Bound by memory: a program reads K and V of a KV head once for all query heads that share it; these
are the rows of its products, padded to the 16 that tensor cores take. What a split gives depends on
L and its keys alone, and they are merged in order, so W changes no result, nor does the batch while
L stays: it follows from how many tokens a table can hold, which in passes outside of graphs is what
the longest context wants, if that is above 65,536 tokens. The grid follows from upper bounds that
the host knows, so that a captured graph fits all contexts below; programs without a split end at
once, and W keeps them few. First tokens that are seen beside a window, and lie in a split before
it, are a split of their own: the one before the window's first.

    partial [R, N, splits, H], lse [R, N, splits] float32      of the splits from the window's first

R requests, N query heads, H head width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.attention.merge_splits_gpu import merge_splits
from baton.kernels.attention.scoring_gpu import ScoringRules
from baton.kernels.attention.softmax_tile_gpu import first_seen, scored, split_of_first, weigh
from baton.kernels.gpu.dot import dot
from baton.kernels.paging.arena_gpu import PagedCache, as_computed, load_tile
from baton.kernels.paging.sequences import Sequences

MIN_SPLIT_KEYS = 256
"""Reading fewer takes no longer than starting a program, and partial results weigh as much."""
MAX_SPLITS = 256
ENOUGH_PROGRAMS = 4096
"""Several for each place on the device, so that long and short contexts even out."""


def split_keys(sequences: Sequences) -> int:
    """L: the same in all passes whose tables lie the same distance apart, as in graphs."""
    capacity = sequences.block_tables.stride(0) * sequences.block_size
    return max(MIN_SPLIT_KEYS, triton.next_power_of_2(triton.cdiv(capacity, MAX_SPLITS)))


def keys_a_tile(q: Tensor, cache: PagedCache) -> int:
    """As many as leave registers and shared memory to several programs of a multiprocessor.

    Twice as many of 8 bits: turning them into the dtype of the products takes half of all
    instructions, and what is done once a tile must not take much more.
    """
    if q.dtype is torch.float32:
        return 16
    keys = 64 if cache.column_tile <= 128 else 32
    return 2 * keys if cache.has_scales else keys


def paged_decode(
    q: Tensor,
    out: Tensor,
    cache: PagedCache,
    sequences: Sequences,
    rules: ScoringRules,
    keys_a_split: int | None = None,
) -> None:
    """Fill `out` [T, N, H] at the tokens of q of all requests that have one."""
    split = split_keys(sequences) if keys_a_split is None else keys_a_split
    reach = sequences.max_context_len
    if rules.window is not None:
        # A window may begin and end amid splits.
        reach = min(reach, rules.window_size + split * (2 if rules.num_first else 1))
    num_splits, num_requests = triton.cdiv(reach, split), sequences.num_requests
    num_heads = q.shape[1]
    group = num_heads // cache.num_kv_heads
    rows = max(16, min(64, triton.next_power_of_2(group)))
    heads = cache.num_kv_heads * triton.cdiv(group, rows)
    workers = min(num_splits, triton.cdiv(ENOUGH_PROGRAMS, num_requests * heads))
    keys = min(split, keys_a_tile(q, cache))
    shape = num_requests, num_heads, num_splits
    partial = torch.empty(*shape, cache.width, dtype=torch.float32, device=q.device)
    lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    _attend_splits[workers, heads, num_requests](
        q, *q.stride()[:2],
        cache.items, cache.block_stride, cache.head_stride,
        cache.scales, *cache.scale_strides,
        sequences.block_tables, sequences.block_tables.stride(0),
        sequences.context_lens, sequences.query_starts,
        partial, lse, num_splits, *rules.numbers(cache.width),
        GROUP=group, WIDTH=cache.width, BLOCK_SIZE=cache.block_size, SPLIT=split,
        HAS_SCALES=cache.has_scales, HAS_SOFTCAP=rules.has_softcap,
        HAS_WINDOW=rules.window is not None, IS_CHUNKED=rules.is_chunked, NUM_FIRST=rules.num_first,
        HEAD_TILES=triton.cdiv(group, rows), ROWS=rows, COLUMNS=cache.column_tile, KEYS=keys,
        num_warps=4,
        # One tile of K and V (32 KB) is read ahead, its table entries one earlier. Registers let
        # four programs share a multiprocessor: enough bytes under way to hide the latency.
        num_stages=3,
    )  # fmt: skip
    merge_splits(partial, lse, out, sequences, rules, split)


@triton.jit(do_not_specialize=["num_splits"])
def _attend_splits(
    q, q_token_stride, q_head_stride,
    items, block_stride, head_stride,
    scales, scale_block_stride, scale_head_stride,
    tables, table_stride, context_lens, query_starts,
    partial, lse, num_splits, scale, softcap, window,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr, SPLIT: tl.constexpr,
    HAS_SCALES: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_WINDOW: tl.constexpr,
    IS_CHUNKED: tl.constexpr, NUM_FIRST: tl.constexpr,
    HEAD_TILES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(1) // HEAD_TILES
    row = (tl.program_id(1) % HEAD_TILES) * ROWS + tl.arange(0, ROWS)
    request = tl.program_id(2).to(tl.int64)
    token = tl.load(query_starts + request)
    if tl.load(query_starts + request + 1) - token != 1:
        return
    context = tl.load(context_lens + request).to(tl.int32)
    first = first_seen(context - 1, window, IS_CHUNKED) if HAS_WINDOW else 0
    heads = kv_head * GROUP + row
    columns = tl.arange(0, COLUMNS)
    q_tile = load_tile(
        q + token * q_token_stride, heads * q_head_stride, row < GROUP, WIDTH, COLUMNS
    )
    items += kv_head * head_stride
    scales += kv_head * scale_head_stride
    first_split = split_of_first(first, SPLIT, NUM_FIRST)
    for split in range(first_split + tl.program_id(0), tl.cdiv(context, SPLIT), tl.num_programs(0)):
        begin = tl.maximum(split * SPLIT, first // KEYS * KEYS)
        stop = tl.minimum(split * SPLIT + SPLIT, context)
        if NUM_FIRST > 0:
            begin = tl.where(split * SPLIT < NUM_FIRST, split * SPLIT, begin)
            is_before = split < first // SPLIT
            begin = tl.where(is_before, 0, begin)
            stop = tl.where(is_before, tl.minimum(first // SPLIT * SPLIT, NUM_FIRST), stop)
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in range(begin, stop, KEYS):
            key = start + tl.arange(0, KEYS)
            inside = ((key >= first) | (key < NUM_FIRST)) & (key < stop)
            block = tl.load(
                tables + request * table_stride + key // BLOCK_SIZE, mask=inside, other=0
            ).to(tl.int64)
            slot = key % BLOCK_SIZE
            at = block * block_stride + slot * WIDTH
            k = load_tile(items, at, inside, WIDTH, COLUMNS)
            v = load_tile(items + BLOCK_SIZE * WIDTH, at, inside, WIDTH, COLUMNS)
            k = as_computed(k, q_tile.dtype, HAS_SCALES)
            products = dot(q_tile, tl.trans(k), tl.zeros([ROWS, KEYS], tl.float32))
            v_scales = products
            if HAS_SCALES:
                at = scales + block * scale_block_stride + slot
                products *= tl.load(at, mask=inside, other=0.0)[None, :]
                v_scales = tl.load(at + BLOCK_SIZE, mask=inside, other=0.0)
            scores = scored(products, scale, softcap, HAS_SOFTCAP)
            v = as_computed(v, q_tile.dtype, HAS_SCALES)
            acc, top, total = weigh(
                acc, top, total, scores, inside[None, :], v, v_scales, HAS_SCALES
            )
        at = (request * tl.num_programs(1) // HEAD_TILES * GROUP + heads) * num_splits
        at += split - first_split
        tl.store(lse + at, top + tl.log2(total), mask=row < GROUP)
        kept = (row < GROUP)[:, None] & (columns < WIDTH)[None, :]
        tl.store(partial + at[:, None] * WIDTH + columns[None, :], acc / total[:, None], mask=kept)
