"""Attention of long chunks with torch's libraries: cuDNN, or flash attention.

    keys of a chunk     | piece | piece | rest |  new tokens  |
                          visible to all queries    causal        merged by log-sum-exp

Requests are processed one at a time. K and V are gathered from the blocks piece by piece, which
costs little with 2,000 queries or more. cuDNN makes a plan for each pair of lengths, which takes a
good part of a second. So the number of new tokens is padded to a multiple of LENGTH_STEP (queries
do not see the keys after them), and pieces have PIECE keys, or half of it, a quarter and so on, at
least LEAST_PIECE. The rest is left to flash attention, which needs no plan.

Neither library supports soft caps, sinks, windows or block tables;
kernels/attention/paged_prefill_gpu.py does.

T new tokens, N query heads, K KV heads, H head width, S tokens a block, L keys of a piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from baton.kernels.attention.gather_kv_gpu import gather_kv
from baton.kernels.attention.merge_attention_gpu import merge_attention
from baton.kernels.attention.scoring_gpu import ScoringRules
from baton.kernels.paging.arena_gpu import PagedCache
from baton.kernels.paging.sequences import Sequences
from baton.kernels.paging.window import within

MIN_TOKENS = 2048
"""Least new tokens of a request for this path. Not measured yet: bench/gpu/__main__.py times
both."""
LENGTH_STEP = 512
LEAST_PIECE = 8 * LENGTH_STEP
PIECE = 128 * LENGTH_STEP
"""Most keys gathered at a time: 256 MB for 8 heads of width 128 in bfloat16."""

Attend = Callable[[Tensor, Tensor, Tensor, bool, float], tuple[Tensor, Tensor]]
"""(q [1, N, T, H], k and v [1, K, L, H], is causal, scale) -> (output like q, log-sum-exp [1, N,
T])."""


def takes(q: Tensor, num_kv_heads: int, sequences: Sequences, rules: ScoringRules) -> bool:
    """Whether some request may be long enough, so that the lengths are worth copying from the
    device."""
    return (
        sequences.max_query_len >= MIN_TOKENS
        and q.dtype is not torch.float32
        and not rules.has_softcap
        and rules.sinks is None
        and within(rules.window, sequences.max_context_len) is None
        and _operator(*_samples(q, num_kv_heads), True) is not None
    )


def library_prefill(
    q: Tensor,
    out: Tensor,
    cache: PagedCache,
    sequences: Sequences,
    rules: ScoringRules,
    min_tokens: int = MIN_TOKENS,
) -> None:
    """Write `out` [T, N, H] for the tokens of all requests with at least `min_tokens` new
    tokens."""
    scale, _, _ = rules.numbers(q.shape[-1])
    start = 0
    for request, (query_len, context_len) in enumerate(sequences.lengths()):
        tokens = slice(start, start + query_len)
        start += query_len
        if query_len >= min_tokens:
            table = sequences.block_tables[request]
            out[tokens] = _attend(q[tokens], cache, table, context_len, scale)


def _attend(q: Tensor, cache: PagedCache, table: Tensor, context_len: int, scale: float) -> Tensor:
    """q [T, N, H], the last tokens of a request, -> [T, N, H]"""
    num_tokens = len(q)
    past = context_len - num_tokens
    padding = -num_tokens % LENGTH_STEP
    queries = functional.pad(q, (0, 0, 0, 0, 0, padding)).transpose(0, 1).unsqueeze(0)
    new = range(past, context_len)
    k, v = gather_kv(cache, table, new, num_tokens + padding, q.dtype)
    out, lse = _run(queries, k.unsqueeze(0), v.unsqueeze(0), True, scale)
    out, lse = out[0].transpose(0, 1), lse[0]
    for piece in _pieces(past):
        k, v = gather_kv(cache, table, piece, len(piece), q.dtype)
        other, other_lse = _run(queries, k.unsqueeze(0), v.unsqueeze(0), False, scale)
        merge_attention(out, lse, other[0].transpose(0, 1), other_lse[0])
    return out[:num_tokens]


def _pieces(past: int) -> Iterator[range]:
    """The fewest pieces that cover `past` keys: of PIECE keys, then of its halves, then the
    rest."""
    first, length = 0, PIECE
    while first < past:
        while length > past - first and length > LEAST_PIECE:
            length //= 2
        yield range(first, min(first + length, past))
        first += length


def _run(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    operator = _operator(q, k, v, causal)
    if operator is None:
        raise ValueError(f"no attention of torch takes {q.shape=} {k.shape=} {q.dtype}")
    out, lse = operator(q, k, v, causal, scale)
    return out, lse.contiguous()


def _samples(q: Tensor, num_kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a planned length and with the strides that they will have."""
    _, num_heads, width = q.shape
    kv = q.new_empty(1, num_kv_heads, LENGTH_STEP, width)
    return q.new_empty(1, LENGTH_STEP, num_heads, width).transpose(1, 2), kv, kv


def _operator(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Attend | None:
    if q.device.type == "cpu":
        return _flash_on_cpu
    cuda = torch.backends.cuda
    grouped = q.shape[1] != k.shape[1]
    params = cuda.SDPAParams(q, k, v, None, 0.0, causal, grouped)
    planned = q.shape[2] % LENGTH_STEP == 0 and (causal or k.shape[2] >= LEAST_PIECE)
    if planned and cuda.can_use_cudnn_attention(params):
        return _cudnn
    return _flash if cuda.can_use_flash_attention(params) else None


def _cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, causal, False, scale=scale
    )
    return out, lse.reshape(q.shape[:3])


def _flash(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
        q, k, v, 0.0, causal, False, scale=scale
    )
    return out, lse


def _flash_on_cpu(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, scale=scale
    )
    return out, lse
