# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Finds work items on the device: the splits of all requests of a pass, concatenated.

    contexts     700     40     600          with splits of 256 keys
    items        0 1 2 | 3 | 4 5 6           splits before a window are left out

A graph is captured for the longest possible contexts; its items when it is replayed follow from the
lengths in memory at that time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from baton.kernels.attention.softmax_tile_gpu import first_seen, split_of_first


@triton.jit
def find_item(
    item, num_requests, context_lens, query_starts, longest, first_row, window,
    GROUP: tl.constexpr, SPLIT: tl.constexpr, HAS_WINDOW: tl.constexpr, IS_CHUNKED: tl.constexpr,
    NUM_FIRST: tl.constexpr, REQUESTS: tl.constexpr,
):  # fmt: skip
    """The request of an item, and the number of the split within it; there is none after the last
    item. Only requests with a row from `first_row` on count; a program computes some of their rows.

    It is computed anew for each item, because keeping it would take registers from the tiles.
    """
    request, place, num_items = item.to(tl.int64) * 0, item, item * 0
    for base in range(0, num_requests, REQUESTS):
        among = base + tl.arange(0, REQUESTS)
        are_there = among < num_requests
        starts_at = tl.load(query_starts + among, mask=are_there, other=0)
        stops_at = tl.load(query_starts + among + 1, mask=are_there, other=0)
        num_tokens = (stops_at - starts_at).to(tl.int32)
        context = tl.load(context_lens + among, mask=are_there, other=0).to(tl.int32)
        first = first_seen(context - num_tokens, window, IS_CHUNKED) if HAS_WINDOW else 0
        counts = tl.cdiv(context, SPLIT) - split_of_first(first, SPLIT, NUM_FIRST)
        are_here = (num_tokens <= longest) & (num_tokens * GROUP > first_row)
        counts = tl.where(are_there & are_here, counts, 0)
        are_before = num_items + tl.cumsum(counts, 0) <= item
        request += tl.sum(are_before.to(tl.int64), 0)
        place -= tl.sum(tl.where(are_before, counts, 0), 0)
        num_items += tl.sum(counts, 0)
    return request, place
