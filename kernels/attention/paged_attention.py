"""Causal attention over a KV cache in blocks.

    arena of one layer   [blocks][K][2][S][H]     K, then V; one (block, head, K or V) is a *row*
    request              tokens 0 .. context - 1 are in the blocks of its table, in order; the last
                         `query_len` of them are the new tokens of this pass

The operation for an arena is chosen in kernels/attention/layer_kv.py. The new K and V have been
written into the arena before (kernels/cache_write/rope_kv_write.py). Each new token attends to all
tokens of its request up to and including itself, or to those in its window
(kernels/paging/window.py).

    out = sum over keys of  weight * v        weight = e^score / (e^sink + sum over keys of e^score)

A *sink* (GPT-OSS) is an additional score of a head without a key: it takes weight and adds no
value.

T new tokens of all requests, concatenated; N query heads, K KV heads (N a multiple of K), H head
width, S tokens a block, R requests, M blocks of the longest request.

Slots after the end of a request may contain anything, even NaN, and are never read. A NaN within a
request makes the outputs NaN that attend to it. The compiled CPU operator is batch-invariant, and
independent of chunks and the number of threads; the fallback in torch is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from baton.kernels.attention.explicit_attention import explicit_attention
from baton.kernels.attention.scoring import PLAIN, Scoring
from baton.kernels.paging.attention_plan import ArenaShape, AttentionGroup, AttentionPlan
from baton.kernels.paging.quantized_arena import Arena, QuantizedArena
from baton.kernels.paging.sequences import Sequences
from baton.kernels.paging.window import Window, first_seen, num_first_of


def by_torch(
    q: Tensor,
    arena: Arena,
    sequences: Sequences,
    window: Window,
    scoring: Scoring,
    sinks: Tensor | None,
) -> Tensor:
    """Attention output [T, N, H] of q [T, N, H]; `sinks` [N], float32 or in q's dtype."""
    plan = sequences.plan(window, _shape(arena, q.dtype))
    return _attend(q, arena, plan, _Rules(scoring, sinks))


@dataclass(frozen=True, slots=True)
class _Rules:
    """The settings that all tokens of a layer share."""

    scoring: Scoring
    sinks: Tensor | None

    @property
    def are_fused(self) -> bool:
        """Whether torch's fused attention supports these settings."""
        return self.scoring.softcap is None and self.sinks is None


def _attend(q: Tensor, arena: Arena, plan: AttentionPlan, rules: _Rules) -> Tensor:
    if len(plan.decodes) == 1 and not plan.prefills:
        return _attend_decodes(q, arena, plan.decodes[0], rules)
    out = torch.empty_like(q)
    for group in plan.decodes:
        out[group.tokens] = _attend_decodes(q[group.tokens], arena, group, rules)
    for group in plan.prefills:
        out[group.tokens] = _attend_prefill(q[group.tokens], arena, group, rules)
    return out


def _shape(arena: Arena, dtype: torch.dtype) -> ArenaShape:
    if isinstance(arena, QuantizedArena):
        kv_heads, block_size = arena.units.shape[1], arena.block_size
        row_bytes = arena.units.shape[2] // 2
    else:
        _, kv_heads, _, block_size, width = arena.shape
        row_bytes = block_size * width * arena.element_size()
    return ArenaShape(kv_heads, block_size, row_bytes, dtype)


def _attend_decodes(q: Tensor, arena: Arena, group: AttentionGroup, rules: _Rules) -> Tensor:
    """Requests with one new token each: q is [R, N, H]. The query heads of a KV head become its
    queries."""
    requests, num_heads, width = q.shape
    k, v = _gather(arena, group, requests, q.dtype)
    kv_heads = k.shape[1]
    queries = q.reshape(requests, kv_heads, num_heads // kv_heads, width)
    if rules.are_fused:
        out = functional.scaled_dot_product_attention(
            queries, k, v, attn_mask=group.bias, scale=rules.scoring.scale
        )
    else:
        assert group.bias is not None
        bias = group.bias.unsqueeze(1)
        out = explicit_attention(queries.unsqueeze(3), k, v, bias, rules.scoring, rules.sinks)
    return out.reshape(requests, num_heads, width)


def _attend_prefill(q: Tensor, arena: Arena, group: AttentionGroup, rules: _Rules) -> Tensor:
    """One request with several new tokens: q is [tokens, N, H]."""
    k, v = _gather(arena, group, 1, q.dtype)
    if group.bias is None:
        k, v = k[:, :, : len(q)], v[:, :, : len(q)]
    queries = q.transpose(0, 1).unsqueeze(0)  # [1, N, tokens, H]
    if rules.are_fused:
        out = functional.scaled_dot_product_attention(
            queries,
            k,
            v,
            attn_mask=group.bias,
            is_causal=group.bias is None,
            scale=rules.scoring.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    else:
        grouped = queries.view(1, k.shape[1], -1, *queries.shape[2:])
        out = explicit_attention(grouped, k, v, group.bias, rules.scoring, rules.sinks)
        out = out.flatten(1, 2)
    return out[0].transpose(0, 1)


def _gather(
    arena: Arena, group: AttentionGroup, requests: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """K and V of all blocks of a group, each [R, K, M * S, H]."""
    if isinstance(arena, QuantizedArena):
        shape = requests, arena.units.shape[1], -1, arena.width
        keys = group.rows[: len(group.rows) // 2]  # row = 2 * unit
        k, v = (part.reshape(shape) for part in arena.gather(keys // 2, dtype).unbind(1))
    else:
        _, kv_heads, _, block_size, width = arena.shape
        kv = arena.view(-1, block_size * width).index_select(0, group.rows)
        k, v = kv.view(2, requests, kv_heads, -1, width)
    if group.not_its_own is not None:  # 0 * NaN is NaN
        hidden = group.not_its_own[:, None, :, None]
        k, v = k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)
    return k, v


def reference(
    q: Tensor,
    arena: Tensor,
    requests: Sequence[tuple[Sequence[int], int, int]],
    window: Window = None,
    scoring: Scoring = PLAIN,
    sinks: Tensor | None = None,
) -> Tensor:
    """The definition, one token and one head at a time, in float32.

    `requests` gives, in the order of their tokens in q: (block table, query_len, context_len).
    """
    out = torch.empty_like(q)
    token, heads_per_kv = 0, q.shape[1] // arena.shape[1]
    for table, query_len, context_len in requests:
        for place in range(context_len - query_len, context_len):
            first = first_seen(window, place)
            seen = [*range(min(num_first_of(window), first)), *range(first, place + 1)]
            past = arena[list(table)].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, seen]
            for head in range(q.shape[1]):
                keys, values = past[head // heads_per_kv].float()
                scores = keys @ q[token, head].float() * scoring.scale_of(q.shape[-1])
                if scoring.softcap is not None:
                    scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
                if sinks is not None:
                    scores = torch.cat((scores, sinks[head, None].float()))
                weights = scores.softmax(0)[: len(keys)]
                out[token, head] = (weights @ values).to(q.dtype)
            token += 1
    return out
