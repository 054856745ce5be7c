# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""What the splits of a context say about a token, put together in order.

    lse = log2 sum 2^lse[s]      out = sum 2^(lse[s] - lse) partial[s]      s over all splits

A sink takes part as a split without a value. One program a query head and request; those with
several new tokens, which are attended elsewhere, are left out.

    partial [R, N, splits, H], lse [R, N, splits] float32      of the splits from the window's first

R requests, N query heads, H head width.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.attention.scoring_gpu import ScoringRules
from baton.kernels.attention.softmax_tile_gpu import first_seen, first_top, split_of_first
from baton.kernels.paging.arena_gpu import load_tile
from baton.kernels.paging.sequences import Sequences

MERGED_AT_ONCE = 16


def merge_splits(
    partial: Tensor,
    lse: Tensor,
    out: Tensor,
    sequences: Sequences,
    rules: ScoringRules,
    split: int,
) -> None:
    """Fill `out` from the splits of each request."""
    requests, num_heads, num_splits = lse.shape
    width = partial.shape[-1]
    _merge[num_heads, requests](
        partial, lse, num_splits, out, *out.stride()[:2],
        rules.sinks, sequences.context_lens, sequences.query_starts, rules.window_size,
        WIDTH=width, COLUMNS=triton.next_power_of_2(width), SPLIT=split,
        HAS_SINKS=rules.sinks is not None, HAS_WINDOW=rules.window is not None,
        IS_CHUNKED=rules.is_chunked, NUM_FIRST=rules.num_first, AT_ONCE=MERGED_AT_ONCE, num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_splits"])
def _merge(
    partial, lse, num_splits, out, out_token_stride, out_head_stride,
    sinks, context_lens, query_starts, window,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr,
    HAS_SINKS: tl.constexpr, HAS_WINDOW: tl.constexpr, IS_CHUNKED: tl.constexpr,
    NUM_FIRST: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    request = tl.program_id(1).to(tl.int64)
    token = tl.load(query_starts + request)
    if tl.load(query_starts + request + 1) - token != 1:
        return
    context = tl.load(context_lens + request).to(tl.int32)
    first = first_seen(context - 1, window, IS_CHUNKED) if HAS_WINDOW else 0
    used = tl.cdiv(context, SPLIT) - split_of_first(first, SPLIT, NUM_FIRST)
    columns = tl.arange(0, COLUMNS)
    at = (request * tl.num_programs(0) + head) * num_splits
    acc = tl.zeros([COLUMNS], tl.float32)
    top, total = first_top(sinks, head, head >= 0, HAS_SINKS)
    for start in range(0, used, AT_ONCE):
        split = start + tl.arange(0, AT_ONCE)
        inside = split < used
        part_lse = tl.load(lse + at + split, mask=inside, other=float("-inf"))
        part = load_tile(partial, (at + split) * WIDTH, inside, WIDTH, COLUMNS)
        new_top = tl.maximum(top, tl.max(part_lse, 0))
        weights = tl.exp2(part_lse - new_top)
        fade = tl.exp2(top - new_top)
        total = total * fade + tl.sum(weights, 0)
        acc = acc * fade + tl.sum(weights[:, None] * part, 0)
        top = new_top
    tl.store(
        out + token * out_token_stride + head * out_head_stride + columns,
        (acc / total).to(out.dtype.element_ty),
        mask=columns < WIDTH,
    )
