"""Attention without torch's fused kernels, which lack soft caps and sinks.

    score = cap tanh(scale q.k / cap) + bias        without a cap: scale q.k + bias
    out   = sum e^score v / (e^sink + sum e^score)

Queries are processed in parts of at most SCORE_ITEMS scores. Products are in the dtype of the
inputs, tanh and softmax in float32.

R requests, K KV heads, G query heads a KV head, Q queries and L keys of each request, H head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.attention.scoring import Scoring

SCORE_ITEMS = 16 << 20


def explicit_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scoring: Scoring, sinks: Tensor | None
) -> Tensor:
    """q [R, K, G, Q, H] on k and v [R, K, L, H]; bias [R, 1, 1, 1, L] or [Q, L]; sinks [K * G].

    Returns the shape of q. Without a bias, query i attends to keys 0 .. i, and there are as many
    keys as queries.
    """
    requests, kv_heads, group, num_queries, _ = q.shape
    step = max(1, SCORE_ITEMS // (requests * kv_heads * group * k.shape[2]))
    out = torch.empty_like(q)
    for start in range(0, num_queries, step):
        queries = slice(start, start + step)
        part = q[..., queries, :]
        seen = _future_of(part, k, start) if bias is None else _of(bias, queries)
        weights = attention_weights(part, k, seen, scoring, sinks)
        flat = weights.to(q.dtype).view(requests, kv_heads, -1, k.shape[2])
        out[..., queries, :] = (flat @ v).view(requests, kv_heads, group, -1, q.shape[-1])
    return out


def attention_weights(
    q: Tensor, k: Tensor, bias: Tensor, scoring: Scoring, sinks: Tensor | None
) -> Tensor:
    """Attention weights, float32 [R, K, G, Q, L]; the bias is added to all scores."""
    products = q.reshape(*q.shape[:2], -1, q.shape[-1]) @ k.transpose(-2, -1)
    scores = _scores(products.float(), scoring, q.shape[-1]).view(*q.shape[:-1], k.shape[2])
    return _weights(scores.add_(bias), sinks)


def _scores(products: Tensor, scoring: Scoring, width: int) -> Tensor:
    """Scales and caps the products in place."""
    scale, cap = scoring.scale_of(width), scoring.softcap
    return products.mul_(scale) if cap is None else products.mul_(scale / cap).tanh_().mul_(cap)


def _weights(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The softmax of scores [R, K, G, Q, L]; a sink counts as an additional key without a value."""
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.float().view(1, *scores.shape[1:3], 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), dim=-1).softmax(-1)[..., :-1]


def _of(bias: Tensor, queries: slice) -> Tensor:
    return bias if bias.shape[-2] == 1 else bias[..., queries, :]


def _future_of(q: Tensor, k: Tensor, start: int) -> Tensor:
    """A causal bias [Q, L] for queries from position `start` on."""
    hidden = torch.full((q.shape[-2], k.shape[-2]), -torch.inf, device=q.device)
    return hidden.triu_(start + 1)


def reference(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scoring: Scoring, sinks: Tensor | None
) -> Tensor:
    """The definition, in float32 and all at once."""
    scores = torch.einsum("rkgqh,rklh->rkgql", q.float(), k.float())
    scores = scores * scoring.scale_of(q.shape[-1])
    if scoring.softcap is not None:
        scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
    scores = scores + (_future_of(q, k, 0) if bias is None else bias.float())
    weights = scores.exp()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + sinks.float().exp().view(1, *scores.shape[1:3], 1, 1)
    return torch.einsum("rkgql,rklh->rkgqh", weights / total, v.float()).to(q.dtype)
