# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Cuts the keys of a short chunk after a long context (a turn of a conversation) into splits, so
that few tiles of queries occupy a device.

    keys of a request    | 0 .. L - 1 | L .. 2L - 1 | ... context - 1      at most S splits
    result of a split    softmax within it, and log2 of its total weight; the sink is in the first
    merged               sum 2^lse out / sum 2^lse, over the splits in which a token sees any key

L follows from the context of the request, so the grid of a graph fits all contexts. The result of a
request with a single split is written without merging.

    partial [T, N, S, H], lse [T, N, S] float32

T new tokens, N query heads, H head width.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.attention.scoring_gpu import ScoringRules
from baton.kernels.gpu.owner import owner_of
from baton.kernels.paging.arena_gpu import load_tile
from baton.kernels.paging.sequences import Sequences

ENOUGH_PROGRAMS = 264
"""Two programs per multiprocessor of a Hopper."""
MAX_SPLITS = 8
MIN_SPLIT_KEYS = 1024
"""Least keys of a split: fewer take no longer than merging. A multiple of the keys of a tile."""


def num_splits(num_programs: int, sequences: Sequences, rules: ScoringRules) -> int:
    """Upper bound of the splits of a request; 1 with windows, which are short enough."""
    if rules.window is not None:
        return 1
    wanted = triton.cdiv(ENOUGH_PROGRAMS, max(1, num_programs))
    return max(1, min(MAX_SPLITS, wanted, sequences.max_context_len // MIN_SPLIT_KEYS))


def merge_prefill(
    partial: Tensor,
    lse: Tensor,
    out: Tensor,
    sequences: Sequences,
    longest: int,
    shortest: int,
    keys_a_tile: int,
) -> None:
    """Write `out` for the tokens of requests with `shortest` to `longest` new tokens and several
    splits."""
    num_tokens, num_heads, splits, width = partial.shape
    _merge[num_heads, num_tokens](
        partial, lse, out, *out.stride()[:2], sequences.context_lens, sequences.query_starts,
        sequences.num_requests, longest, shortest, splits, MIN_SPLIT_KEYS,
        WIDTH=width, COLUMNS=triton.next_power_of_2(width), KEYS=keys_a_tile,
        SPLITS=MAX_SPLITS, num_warps=4,
    )  # fmt: skip


@triton.jit
def keys_of_split(context, num_splits, min_keys, KEYS: tl.constexpr):
    """Keys per split of a request, in whole tiles. `num_splits`: upper bound of the number of
    splits."""
    return tl.maximum(tl.cdiv(tl.cdiv(context, num_splits), KEYS) * KEYS, min_keys)


@triton.jit
def split_of(
    past, done, num_tokens, stop, min_keys, KEYS: tl.constexpr, IS_SPLIT: tl.constexpr
):  # fmt: skip
    """Begin and end of a program's keys, and the end of those visible to all rows, in whole
    tiles."""
    open_end = (past + done + 1) // KEYS * KEYS
    if IS_SPLIT:
        keys = keys_of_split(past + num_tokens, tl.num_programs(2), min_keys, KEYS)
        begin = tl.program_id(2) * keys
        end = tl.minimum(begin + keys, stop)
        return begin, end, tl.minimum(tl.maximum(open_end, begin), end)
    else:
        return 0, stop, open_end


@triton.jit(do_not_specialize=["num_requests", "longest", "shortest", "num_splits", "min_keys"])
def _merge(
    partial, lse, out, out_token_stride, out_head_stride, context_lens, query_starts,
    num_requests, longest, shortest, num_splits, min_keys,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """out = sum 2^(lse[s] - lse) partial[s] over the splits in which a token sees any key."""
    head, token = tl.program_id(0), tl.program_id(1).to(tl.int64)
    request = owner_of(query_starts, num_requests, token)
    starts_at = tl.load(query_starts + request)
    num_tokens = (tl.load(query_starts + request + 1) - starts_at).to(tl.int32)
    context = tl.load(context_lens + request).to(tl.int32)
    keys = keys_of_split(context, num_splits, min_keys, KEYS)
    if (num_tokens < shortest) | (num_tokens > longest) | (context <= keys):
        return
    position = context - num_tokens + (token - starts_at).to(tl.int32)
    split = tl.arange(0, SPLITS)
    inside = split < tl.cdiv(position + 1, keys)
    at = (token * tl.num_programs(0) + head) * num_splits + split
    of_splits = tl.load(lse + at, mask=inside, other=float("-inf"))
    weights = tl.exp2(of_splits - tl.max(of_splits, 0))
    parts = load_tile(partial, at * WIDTH, inside, WIDTH, COLUMNS)
    columns = tl.arange(0, COLUMNS)
    value = tl.sum(weights[:, None] * parts, 0) / tl.sum(weights, 0)
    at = out + token * out_token_stride + head * out_head_stride + columns
    tl.store(at, value.to(out.dtype.element_ty), mask=columns < WIDTH)
