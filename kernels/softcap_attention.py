"""Attention whose scores are soft-capped (Gemma 2), which no fused attention of torch can do.

    out = softmax(cap tanh(scale q.k / cap) + bias) v

Queries are taken a few at a time, so that no more than SCORE_ITEMS scores exist at once. Products
are in the dtype of the inputs, tanh and softmax in float32.

R requests, K KV heads, G query heads a KV head, Q queries and L keys of each request, H head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

SCORE_ITEMS = 16 << 20


def softcap_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, cap: float
) -> Tensor:
    """q [R, K, G, Q, H] on k and v [R, K, L, H]; bias [R, 1, 1, 1, L] or [Q, L]. As q.

    Without a bias query i sees keys 0 .. i, of which there are then as many as queries.
    """
    requests, kv_heads, group, num_queries, _ = q.shape
    step = max(1, SCORE_ITEMS // (requests * kv_heads * group * k.shape[2]))
    out = torch.empty_like(q)
    for start in range(0, num_queries, step):
        queries = slice(start, start + step)
        part = q[..., queries, :].reshape(requests, kv_heads, -1, q.shape[-1])
        scores = (part @ k.transpose(-2, -1)).float().mul_(scale / cap).tanh_().mul_(cap)
        scores = scores.view(requests, kv_heads, group, -1, k.shape[2])
        scores += _hidden_future(scores, start) if bias is None else _of(bias, queries)
        weights = scores.softmax(-1).to(q.dtype).view(requests, kv_heads, -1, k.shape[2])
        out[..., queries, :] = (weights @ v).view(requests, kv_heads, group, -1, q.shape[-1])
    return out


def _of(bias: Tensor, queries: slice) -> Tensor:
    return bias if bias.shape[-2] == 1 else bias[..., queries, :]


def _hidden_future(scores: Tensor, start: int) -> Tensor:
    num_queries, num_keys = scores.shape[-2:]
    hidden = torch.full((num_queries, num_keys), -torch.inf, device=scores.device)
    return hidden.triu_(start + 1)


def reference(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, cap: float
) -> Tensor:
    """The definition, in float32 and all at once."""
    scores = torch.einsum("rkgqh,rklh->rkgql", q.float(), k.float()) * scale
    scores = cap * torch.tanh(scores / cap)
    scores = scores + (_hidden_future(scores, 0) if bias is None else bias.float())
    return torch.einsum("rkgql,rklh->rkgqh", scores.softmax(-1), v.float()).to(q.dtype)
