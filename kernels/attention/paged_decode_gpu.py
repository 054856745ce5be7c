# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Attention of requests with few new tokens: a decode token, or drafts to verify. Their contexts
are cut into splits that are processed in parallel.

    splits of a request    | 0 .. L - 1 | L .. 2L - 1 | ... context - 1      L keys each
    items                  the splits of all requests, concatenated
    a program              rows of one KV head; every W-th item
    a row                  one query head of one new token, which sees the tokens before it
    result of a split      softmax within it [rows, H] and log2 of its total weight
    merged                 sum 2^lse out / sum 2^lse, the sink being a split without a value

The kernel is bound by memory: a program reads K and V of a KV head once for all query heads that
share it and for all new tokens. These are the rows of its products, padded to the 16 that tensor
cores need, at most 64; further rows go to other programs, which find K and V in the L2 cache.

The partial result of a split depends on L and its keys only, and splits are merged in order, so W
does not affect results. Neither does the batch, for requests with one new token, as long as L is
the same. L follows from the number of tokens that a block table can hold; outside of graphs that is
the longest context, if above 65,536 tokens. If the partial results of several new tokens would
exceed MAX_PARTIAL_BYTES, their splits are longer.

The grid follows from upper bounds known to the host, so a captured graph fits all shorter contexts.
Each program finds its items from the lengths on the device, so that short and long contexts are
spread evenly over all programs.

First tokens that are visible beside a window and lie in an earlier split form a split of their own,
which is stored before the window's first split. Splits begin at those of the first new token; a
split in which a row sees nothing has no weight. The result of a request with a single split is
written without merging.

    partial [R, Q, N, splits, H], lse [R, Q, N, splits] float32    from the window's first split on

R requests, Q the most new tokens of one, N query heads, H head width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.attention.merge_splits_gpu import DONE_AT, merge_splits
from baton.kernels.attention.scoring_gpu import ScoringRules
from baton.kernels.attention.softmax_tile_gpu import (
    first_seen,
    first_top,
    scored,
    split_of_first,
    weigh,
)
from baton.kernels.attention.split_items_gpu import find_item
from baton.kernels.gpu.dot import dot
from baton.kernels.paging.arena_gpu import PagedCache, as_computed, load_tile
from baton.kernels.paging.sequences import MAX_RUN, Sequences

MIN_SPLIT_KEYS = 256
"""Least keys of a split: reading fewer takes less time than starting a program, and their partial
result is as large as that of more."""
MAX_SPLITS = 256
MAX_ROWS = 64
MAX_PARTIAL_BYTES = 256 << 20
ENOUGH_PROGRAMS = 12 * 132
"""Full waves on a Hopper's 132 multiprocessors, whether one runs two, three, four or six programs
at a time. All programs then have the same number of items, or one more."""
REGISTERS_OF_THREE = 168
"""Registers per thread with which a Hopper can run three programs of four warps at a time."""
REQUESTS_AT_ONCE = 128
"""Requests whose splits a program counts at a time: one per thread, or per two threads."""


def split_keys(sequences: Sequences) -> int:
    """L, the keys per split. It is the same in all passes whose block tables have the same stride,
    as in graphs."""
    capacity = sequences.block_tables.stride(0) * sequences.block_size
    return max(MIN_SPLIT_KEYS, triton.next_power_of_2(triton.cdiv(capacity, MAX_SPLITS)))


def keys_a_tile(q: Tensor, cache: PagedCache) -> int:
    """Keys per tile: as many as leave registers and shared memory for several programs per
    multiprocessor.

    8-bit items have twice as many, because converting them takes half of all instructions, and the
    work that is done once per tile must not add much to that.
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
    *,
    is_batch_invariant: bool = False,
) -> None:
    """Write `out` [T, N, H] for requests with at most MAX_RUN new tokens, in a captured pass or one
    in which no request has more; otherwise for requests with one new token.

    `is_batch_invariant`: use splits of `keys_a_split` keys and tiles of MAX_RUN tokens, and merge
    all splits one after the other, so that results are batch-invariant.
    """
    longest = sequences.max_query_len
    if longest > MAX_RUN:
        longest = MAX_RUN if sequences.is_captured else 1
    num_requests, num_heads = sequences.num_requests, q.shape[1]
    group = num_heads // cache.num_kv_heads
    split = split_keys(sequences) if keys_a_split is None else keys_a_split
    num_splits = _num_splits(sequences, rules, split, longest)
    if longest > 1 and not is_batch_invariant:
        most = MAX_PARTIAL_BYTES // (4 * num_requests * longest * num_heads * cache.width)
        while num_splits > max(1, most):
            split *= 2
            num_splits = _num_splits(sequences, rules, split, longest)
    of_tile = MAX_RUN if is_batch_invariant else longest
    rows = max(16, min(MAX_ROWS, triton.next_power_of_2(group * of_tile)))
    tiles = triton.cdiv(group * longest, rows)
    programs = cache.num_kv_heads * tiles
    workers = min(num_requests * num_splits, triton.cdiv(ENOUGH_PROGRAMS, programs))
    partial, lse, is_split = out, out, is_batch_invariant or num_splits > 1
    if is_split:
        shape = num_requests, longest, num_heads, num_splits
        partial = torch.empty(*shape, cache.width, dtype=torch.float32, device=q.device)
        lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    _attend_splits[workers, programs](
        q, *q.stride()[:2], out, *out.stride()[:2],
        cache.items, cache.block_stride, cache.head_stride,
        cache.scales, *cache.scale_strides,
        sequences.block_tables, sequences.block_tables.stride(0),
        sequences.context_lens, sequences.query_starts, num_requests,
        partial, lse, num_splits, longest, tiles, rules.sinks, *rules.numbers(cache.width),
        GROUP=group, WIDTH=cache.width, BLOCK_SIZE=cache.block_size, SPLIT=split,
        HAS_SCALES=cache.has_scales, HAS_SOFTCAP=rules.has_softcap,
        HAS_WINDOW=rules.window is not None, HAS_SINKS=rules.sinks is not None,
        IS_CHUNKED=rules.is_chunked, NUM_FIRST=rules.num_first,
        HAS_RUNS=of_tile > 1, IS_SPLIT=is_split, DONE_AT=DONE_AT[is_batch_invariant],
        REQUESTS=REQUESTS_AT_ONCE,
        ROWS=rows, COLUMNS=cache.column_tile, KEYS=min(split, keys_a_tile(q, cache)),
        num_warps=8 if rows == MAX_ROWS else 4,  # or accumulators of so many rows would spill
        # One tile of K and V (32 KB) is prefetched, and its table entries one tile earlier. The
        # limit on registers lets three programs share a multiprocessor, with enough bytes in flight
        # to hide the latency of memory.
        num_stages=3, maxnreg=_max_registers(rows, of_tile, cache),
    )  # fmt: skip
    if is_split:
        merge_splits(
            partial, lse, out, sequences, rules, split, is_batch_invariant=is_batch_invariant
        )


def _max_registers(rows: int, longest: int, cache: PagedCache) -> int | None:
    """Limit of registers per thread for few rows of drafts, where the compiler would otherwise use
    slightly too many for a third program per multiprocessor; None: no limit."""
    is_small = rows == 16 and cache.column_tile <= 128 and not cache.has_scales
    return REGISTERS_OF_THREE if is_small and longest > 1 else None


def _num_splits(sequences: Sequences, rules: ScoringRules, split: int, longest: int) -> int:
    """Upper bound of the splits of a request."""
    reach = sequences.max_context_len
    if rules.window is not None:
        # A window may begin and end within splits, and the window of the last token ends after that
        # of the first.
        seen = rules.window_size + longest - 1
        reach = min(reach, seen + split * (2 if rules.num_first else 1))
    return triton.cdiv(reach, split)


@triton.jit
def _keys_of(
    split, first, context, SPLIT: tl.constexpr, KEYS: tl.constexpr, NUM_FIRST: tl.constexpr
):
    """Begin and end of the keys to read of a split."""
    begin = tl.maximum(split * SPLIT, first // KEYS * KEYS)
    stop = tl.minimum(split * SPLIT + SPLIT, context)
    if NUM_FIRST > 0:
        begin = tl.where(split * SPLIT < NUM_FIRST, split * SPLIT, begin)
        is_before = split < first // SPLIT
        begin = tl.where(is_before, 0, begin)
        stop = tl.where(is_before, tl.minimum(first // SPLIT * SPLIT, NUM_FIRST), stop)
    return begin, stop


@triton.jit
def _seen_by(
    key, inside, positions, window,
    HAS_WINDOW: tl.constexpr, IS_CHUNKED: tl.constexpr, NUM_FIRST: tl.constexpr,
    HAS_RUNS: tl.constexpr,
):  # fmt: skip
    """Mask of the keys that each row sees. A request with one new token sees all keys within the
    context."""
    visible = inside[None, :]
    if HAS_RUNS:
        visible = visible & (key[None, :] <= positions[:, None])
        if HAS_WINDOW:
            seen = first_seen(positions, window, IS_CHUNKED)
            visible = visible & ((key[None, :] >= seen[:, None]) | (key[None, :] < NUM_FIRST))
    return visible


@triton.jit
def _attend_keys(
    acc, top, total, q_tile, positions, first, begin, stop,
    items, block_stride, scales, scale_block_stride, table, scale, softcap, window,
    WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr, HAS_SCALES: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_WINDOW: tl.constexpr, IS_CHUNKED: tl.constexpr,
    NUM_FIRST: tl.constexpr, HAS_RUNS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    for start in range(begin, stop, KEYS):
        key = start + tl.arange(0, KEYS)
        inside = ((key >= first) | (key < NUM_FIRST)) & (key < stop)
        block = tl.load(table + key // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
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
        visible = _seen_by(
            key, inside, positions, window, HAS_WINDOW, IS_CHUNKED, NUM_FIRST, HAS_RUNS
        )
        v = as_computed(v, q_tile.dtype, HAS_SCALES)
        acc, top, total = weigh(acc, top, total, scores, visible, v, v_scales, HAS_SCALES)
    return acc, top, total


@triton.jit(do_not_specialize=["table_stride", "num_requests", "num_splits", "longest", "tiles"])
def _attend_splits(
    q, q_token_stride, q_head_stride, out, out_token_stride, out_head_stride,
    items, block_stride, head_stride,
    scales, scale_block_stride, scale_head_stride,
    tables, table_stride, context_lens, query_starts, num_requests,
    partial, lse, num_splits, longest, tiles, sinks, scale, softcap, window,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr, SPLIT: tl.constexpr,
    HAS_SCALES: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr, IS_CHUNKED: tl.constexpr, NUM_FIRST: tl.constexpr,
    HAS_RUNS: tl.constexpr, IS_SPLIT: tl.constexpr, DONE_AT: tl.constexpr, REQUESTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(1) // tiles
    first_row = (tl.program_id(1) % tiles) * ROWS
    row = first_row + tl.arange(0, ROWS)
    of_request = row // GROUP
    heads = kv_head * GROUP + row % GROUP
    columns = tl.arange(0, COLUMNS)
    items += kv_head * head_stride
    scales += kv_head * scale_head_stride
    item = tl.program_id(0)
    request, place = find_item(
        item, num_requests, context_lens, query_starts, longest, first_row, window,
        GROUP, SPLIT, HAS_WINDOW, IS_CHUNKED, NUM_FIRST, REQUESTS,
    )  # fmt: skip
    while request < num_requests:
        starts_at = tl.load(query_starts + request)
        num_tokens = (tl.load(query_starts + request + 1) - starts_at).to(tl.int32)
        context = tl.load(context_lens + request).to(tl.int32)
        past = context - num_tokens
        used = of_request < num_tokens
        positions = past + tl.minimum(of_request, num_tokens - 1)
        first = first_seen(past, window, IS_CHUNKED) if HAS_WINDOW else 0
        kept = used[:, None] & (columns < WIDTH)[None, :]
        tokens = starts_at + of_request
        q_rows = tokens * q_token_stride + heads * q_head_stride
        q_tile = load_tile(q, q_rows, used, WIDTH, COLUMNS)
        first_split = split_of_first(first, SPLIT, NUM_FIRST)
        # A request with a single split is not merged, so its sink is added here.
        is_alone = tl.cdiv(context, SPLIT) - first_split == DONE_AT
        begin, stop = _keys_of(first_split + place, first, context, SPLIT, KEYS, NUM_FIRST)
        top, total = first_top(sinks, heads, used, HAS_SINKS)
        if HAS_SINKS:
            top = tl.where(is_alone, top, float("-inf"))
            total = tl.where(is_alone, total, 0.0)
        acc, top, total = _attend_keys(
            tl.zeros([ROWS, COLUMNS], tl.float32), top, total, q_tile, positions, first, begin,
            stop, items, block_stride, scales, scale_block_stride,
            tables + request * table_stride, scale, softcap, window,
            WIDTH, BLOCK_SIZE, HAS_SCALES, HAS_SOFTCAP, HAS_WINDOW, IS_CHUNKED, NUM_FIRST,
            HAS_RUNS, ROWS, COLUMNS, KEYS,
        )  # fmt: skip
        weight = tl.where(total == 0.0, 1.0, total)  # of rows that saw nothing `top` is -inf
        share = acc / weight[:, None]
        if is_alone:
            out_rows = tokens * out_token_stride + heads * out_head_stride
            out_at = out + out_rows[:, None] + columns[None, :]
            tl.store(out_at, share.to(out.dtype.element_ty), mask=kept)
        elif IS_SPLIT:
            num_heads = tl.num_programs(1) // tiles * GROUP
            at = ((request * longest + of_request) * num_heads + heads) * num_splits + place
            tl.store(lse + at, top + tl.log2(weight), mask=used)
            tl.store(partial + at[:, None] * WIDTH + columns[None, :], share, mask=kept)
        item += tl.num_programs(0)
        request, place = find_item(
            item, num_requests, context_lens, query_starts, longest, first_row, window,
            GROUP, SPLIT, HAS_WINDOW, IS_CHUNKED, NUM_FIRST, REQUESTS,
        )  # fmt: skip
