# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Merges the partial results of the splits of a context.

    lse = log2 sum 2^lse[s]      out = sum 2^(lse[s] - lse) partial[s]      s over all splits

A sink counts as a split without a value; a split in which the token sees nothing has weight 0. One
program handles one query head of one token. The grid has Q tokens for each of R requests or, in the
graph of a pass with prompts, where most of those do not exist, the tokens of the pass. Requests
with more than Q tokens, whose attention is computed elsewhere, and requests of a single split,
which need no merging, are skipped.

    partial [R, Q, N, splits, H], lse [R, Q, N, splits] float32    from the window's first split on

R requests, Q the most new tokens of one, N query heads, H head width.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.attention.scoring_gpu import ScoringRules
from baton.kernels.attention.softmax_tile_gpu import first_seen, first_top, split_of_first
from baton.kernels.gpu.owner import owner_of
from baton.kernels.paging.arena_gpu import load_tile
from baton.kernels.paging.sequences import Sequences

MERGED_AT_ONCE = {False: 16, True: 1}
"""Splits merged at a time, by whether the order is fixed. With more than one, the order of
additions depends on the first split, which depends on the other tokens of the request."""
DONE_AT = {False: 1, True: 0}
"""Number of splits of a request that needs no merging, by whether the order is fixed; 0 matches
none."""


def merge_splits(
    partial: Tensor,
    lse: Tensor,
    out: Tensor,
    sequences: Sequences,
    rules: ScoringRules,
    split: int,
    *,
    is_batch_invariant: bool = False,
) -> None:
    """Write `out` from the splits of each request. `is_batch_invariant`: merge in the same order in
    every pass."""
    requests, longest, num_heads, num_splits = lse.shape
    width = partial.shape[-1]
    by_token = sequences.is_captured
    grid = (num_heads, len(out)) if by_token else (num_heads, longest, requests)
    _merge[grid](
        partial, lse, num_splits, longest, requests, out, *out.stride()[:2],
        rules.sinks, sequences.context_lens, sequences.query_starts, rules.window_size,
        WIDTH=width, COLUMNS=triton.next_power_of_2(width), SPLIT=split,
        HAS_SINKS=rules.sinks is not None, HAS_WINDOW=rules.window is not None,
        IS_CHUNKED=rules.is_chunked, NUM_FIRST=rules.num_first,
        AT_ONCE=MERGED_AT_ONCE[is_batch_invariant], DONE_AT=DONE_AT[is_batch_invariant],
        BY_TOKEN=by_token, num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_splits", "longest", "num_requests"])
def _merge(
    partial, lse, num_splits, longest, num_requests, out, out_token_stride, out_head_stride,
    sinks, context_lens, query_starts, window,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr,
    HAS_SINKS: tl.constexpr, HAS_WINDOW: tl.constexpr, IS_CHUNKED: tl.constexpr,
    NUM_FIRST: tl.constexpr, AT_ONCE: tl.constexpr, DONE_AT: tl.constexpr, BY_TOKEN: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    of_request = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    if BY_TOKEN:
        request = owner_of(query_starts, num_requests, of_request.to(tl.int64))
    starts_at = tl.load(query_starts + request)
    if BY_TOKEN:
        of_request -= starts_at.to(tl.int32)
    num_tokens = (tl.load(query_starts + request + 1) - starts_at).to(tl.int32)
    if (num_tokens > longest) | (of_request >= num_tokens):
        return
    context = tl.load(context_lens + request).to(tl.int32)
    past = context - num_tokens
    first = first_seen(past, window, IS_CHUNKED) if HAS_WINDOW else 0
    first_split = split_of_first(first, SPLIT, NUM_FIRST)
    if tl.cdiv(context, SPLIT) - first_split == DONE_AT:
        return
    used = tl.cdiv(past + of_request + 1, SPLIT) - first_split
    columns = tl.arange(0, COLUMNS)
    at = ((request * longest + of_request) * tl.num_programs(0) + head) * num_splits
    acc = tl.zeros([COLUMNS], tl.float32)
    top, total = first_top(sinks, head, head >= 0, HAS_SINKS)
    for start in range(0, used, AT_ONCE):
        split = start + tl.arange(0, AT_ONCE)
        inside = split < used
        part_lse = tl.load(lse + at + split, mask=inside, other=float("-inf"))
        part = load_tile(partial, (at + split) * WIDTH, inside, WIDTH, COLUMNS)
        new_top = tl.maximum(top, tl.max(part_lse, 0))
        # The maximum stays at -inf until the first split in which the token sees a key.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(part_lse - base)
        fade = tl.exp2(top - base)
        total = total * fade + tl.sum(weights, 0)
        acc = acc * fade + tl.sum(weights[:, None] * part, 0)
        top = new_top
    tl.store(
        out + (starts_at + of_request) * out_token_stride + head * out_head_stride + columns,
        (acc / total).to(out.dtype.element_ty),
        mask=columns < WIDTH,
    )
