"""Causal attention over a KV cache in blocks.

    arena of one layer   [blocks][K][2][S][H]     K, then V; one (block, head, K or V) is a *row*
    request              its tokens 0 .. context - 1 lie in the blocks of its table, in order;
                         the last `query_len` of them are the new tokens of this pass

New K and V are written first; then each new token attends to all tokens of its request up to and
including itself, or to the last few of them if the plan has a window. What depends on the tables
alone is worked out once a pass, in an AttentionPlan.

T new tokens of all requests end to end, N query heads, K KV heads (N a multiple of K), H head
width, S tokens a block, R requests, M blocks of the longest of them.

Every value in an arena is finite: slots past the end of a request are read (and weighted zero), so
a NaN left there by one request would spoil another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from baton.kernels.attention_plan import AttentionGroup, AttentionPlan
from baton.kernels.quantized_kv import Arena, QuantizedArena
from baton.kernels.softcap_attention import softcap_attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """How a query and a key become a score: q.k times `scale`, then soft-capped."""

    scale: float | None = None
    """None: one over the root of the head width."""
    softcap: float | None = None
    """Scores become  softcap * tanh(score / softcap), so none exceeds it."""


PLAIN = Scoring()


def paged_attention(
    q: Tensor, k: Tensor, v: Tensor, arena: Arena, plan: AttentionPlan, scoring: Scoring = PLAIN
) -> Tensor:
    """Write k and v [T, K, H] into the arena; return what q [T, N, H] attends to, [T, N, H]."""
    kv = torch.stack((k, v), dim=1).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)  # [T, 2, K, H]
    if isinstance(arena, QuantizedArena):
        k, v = arena.write(plan.blocks, plan.offsets, kv).unbind(1)
    else:
        arena.permute(0, 3, 2, 1, 4)[plan.blocks, plan.offsets] = kv
    if len(plan.decodes) == 1 and not plan.prefills:
        return _attend_decodes(q, arena, plan.decodes[0], scoring)
    out = torch.empty_like(q)
    for group in plan.decodes:
        out[group.tokens] = _attend_decodes(q[group.tokens], arena, group, scoring)
    for group in plan.prefills:
        new_kv = (k[group.tokens], v[group.tokens])
        out[group.tokens] = _attend_prefill(q[group.tokens], new_kv, arena, group, scoring)
    return out


def _attend_decodes(q: Tensor, arena: Arena, group: AttentionGroup, scoring: Scoring) -> Tensor:
    """One new token each: q is [R, N, H]. The query heads of a KV head are its queries."""
    requests, num_heads, width = q.shape
    k, v = _gather(arena, group, requests, q.dtype)
    kv_heads = k.shape[1]
    queries = q.reshape(requests, kv_heads, num_heads // kv_heads, width)
    if scoring.softcap is None:
        out = functional.scaled_dot_product_attention(
            queries, k, v, attn_mask=group.bias, scale=scoring.scale
        )
    else:
        assert group.bias is not None
        bias = group.bias.unsqueeze(1)
        out = _softcapped(queries.unsqueeze(3), k, v, bias, scoring)
    return out.reshape(requests, num_heads, width)


def _attend_prefill(
    q: Tensor,
    new_kv: tuple[Tensor, Tensor],
    arena: Arena,
    group: AttentionGroup,
    scoring: Scoring,
) -> Tensor:
    """Several new tokens of one request: q is [tokens, N, H]."""
    if group.rows is None:
        k, v = (x.transpose(0, 1).unsqueeze(0) for x in new_kv)
    else:
        k, v = _gather(arena, group, 1, q.dtype)
    queries = q.transpose(0, 1).unsqueeze(0)  # [1, N, tokens, H]
    if scoring.softcap is not None:
        grouped = queries.view(1, k.shape[1], -1, *queries.shape[2:])
        out = _softcapped(grouped, k, v, group.bias, scoring).flatten(1, 2)
    else:
        out = functional.scaled_dot_product_attention(
            queries,
            k,
            v,
            attn_mask=group.bias,
            is_causal=group.bias is None,
            scale=scoring.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    return out[0].transpose(0, 1)


def _softcapped(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scoring: Scoring) -> Tensor:
    assert scoring.softcap is not None
    return softcap_attention(q, k, v, bias, _scale(scoring, q.shape[-1]), scoring.softcap)


def _scale(scoring: Scoring, width: int) -> float:
    return float(width**-0.5) if scoring.scale is None else scoring.scale


def _gather(
    arena: Arena, group: AttentionGroup, requests: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """K and V of all of a group's blocks, each [R, K, M * S, H]."""
    assert group.rows is not None
    if isinstance(arena, QuantizedArena):
        shape = requests, arena.units.shape[1], -1, arena.width
        keys = group.rows[: len(group.rows) // 2]  # row = 2 * unit
        k, v = arena.gather(keys // 2, dtype).unbind(1)
        return k.reshape(shape), v.reshape(shape)
    _, kv_heads, _, block_size, width = arena.shape
    kv = arena.view(-1, block_size * width).index_select(0, group.rows)
    k, v = kv.view(2, requests, kv_heads, -1, width)
    return k, v


def reference(
    new: tuple[Tensor, Tensor, Tensor],
    arena: Tensor,
    requests: Sequence[tuple[Sequence[int], int, int]],
    window: int | None = None,
    scoring: Scoring = PLAIN,
) -> Tensor:
    """The definition, one token and one head at a time, in float32.

    `new` is q, k and v; `requests` gives, in the order of their tokens in q:
    (block table, query_len, context_len).
    """
    q, k, v = new
    out = torch.empty_like(q)
    block_size, token = arena.shape[3], 0
    heads_per_kv = q.shape[1] // arena.shape[1]
    for table, query_len, context_len in requests:
        for place in range(context_len - query_len, context_len):
            arena[table[place // block_size], :, 0, place % block_size] = k[token]
            arena[table[place // block_size], :, 1, place % block_size] = v[token]
            first = 0 if window is None else max(0, place - window + 1)
            past = arena[list(table)].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, first : place + 1]
            for head in range(q.shape[1]):
                keys, values = past[head // heads_per_kv].float()
                scores = keys @ q[token, head].float() * _scale(scoring, q.shape[-1])
                if scoring.softcap is not None:
                    scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
                out[token, head] = (scores.softmax(0) @ values).to(q.dtype)
            token += 1
    return out
