"""Multi-head latent attention (DeepSeek-V2, 2024), absorbed: heads attend to one latent per token.

    arena of one layer   [blocks][1][S][L + R]     a token's latent, then the part that rotates

    score[n, t] = scale (q_latent[n] . latent[t] + q_rope[n] . rope[t])
    out[n]      = sum over t of softmax(score[n])[t] latent[t]              [N, L]

In the model, head n has keys  U_k[n] latent[t]  and values  U_v[n] latent[t]. Here U_k is absorbed
into the query, q_latent[n] = U_k[n]^T q_nope[n], and U_v is applied to the output: L + R numbers
per token are cached and read instead of 2 N H, and N heads share one matrix product. `scale` is
that of the model's own heads: one over the root of the width of q_nope and q_rope together.

A token sees the tokens of its request up to and including itself. The compiled CPU operator and
batch_invariant_mla_attention_gpu.py are batch-invariant, and independent of chunks and the number
of threads; torch, the fallback, is not.

T new tokens of all requests, N heads, L width of the latent, R of the part that rotates, S tokens a
block.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.kernels.latent_attention import mla_attention_cpu as compiled
from baton.kernels.paging.sequences import Sequences

SCORE_ITEMS = 16 << 20
"""Most scores at a time; queries are processed in parts."""


def mla_attention(
    q_latent: Tensor,
    q_rope: Tensor,
    arena: Tensor,
    sequences: Sequences,
    scale: float,
    *,
    is_batch_invariant: bool = False,
) -> Tensor:
    """q_latent [T, N, L] and q_rope [T, N, R] -> attention output [T, N, L].

    `is_batch_invariant`: results on a GPU must be batch-invariant.
    """
    width = q_latent.shape[-1] + q_rope.shape[-1]
    if (
        q_latent.shape[:2] != q_rope.shape[:2]
        or arena.shape[1:] != (1, sequences.block_size, width)
        or q_latent.dtype is not q_rope.dtype
    ):
        raise ValueError(f"do not fit: {q_latent.shape=} {q_rope.shape=} {arena.shape=}")
    if q_latent.is_cuda:  # Triton, which CPUs do without
        from baton.kernels.latent_attention import batch_invariant_mla_attention_gpu as invariant
        from baton.kernels.latent_attention import mla_attention_gpu as gpu

        if is_batch_invariant:
            return invariant.batch_invariant_mla_attention(
                q_latent, q_rope, arena, sequences, scale
            )
        return gpu.mla_attention(q_latent, q_rope, arena, sequences, scale)
    if compiled.runs(q_latent, arena):
        return compiled.mla_attention(q_latent, q_rope, arena, sequences, scale)
    out, start = torch.empty_like(q_latent), 0
    q = torch.cat((q_latent, q_rope), dim=-1)
    for request, (query_len, context_len) in enumerate(sequences.lengths()):
        past = _latents(arena, sequences.block_tables[request], context_len)
        step = max(1, SCORE_ITEMS // (q.shape[1] * context_len))
        for done in range(0, query_len, step):
            tokens = slice(start + done, start + min(done + step, query_len))
            first = context_len - query_len + done
            out[tokens] = _attend(q[tokens], past, first, scale, q_latent.shape[-1])
        start += query_len
    return out


def _latents(arena: Tensor, table: Tensor, context_len: int) -> Tensor:
    """The latents [context, L + R] of one request."""
    num_blocks = -(-context_len // arena.shape[2])
    return arena.index_select(0, table[:num_blocks]).flatten(0, 2)[:context_len]


def _attend(q: Tensor, past: Tensor, first: int, scale: float, width: int) -> Tensor:
    """Tokens from position `first` on, q [tokens, N, L + R] -> [tokens, N, L]."""
    scores = (q.flatten(0, 1) @ past.T).float().mul_(scale).view(*q.shape[:2], -1)
    places = torch.arange(len(past), device=q.device)
    places_of_tokens = torch.arange(first, first + len(q), device=q.device)
    hidden = places > places_of_tokens.view(-1, 1, 1)
    weights = scores.masked_fill_(hidden, -torch.inf).softmax(-1).to(q.dtype)
    return (weights.flatten(0, 1) @ past[:, :width]).view(*q.shape[:2], width)


def reference(
    q_latent: Tensor,
    q_rope: Tensor,
    arena: Tensor,
    requests: Sequence[tuple[Sequence[int], int, int]],
    scale: float,
) -> Tensor:
    """The definition, one token and one head at a time, in float32.

    `requests` gives, in the order of their tokens: (block table, query_len, context_len).
    """
    out, token, width = torch.empty_like(q_latent), 0, q_latent.shape[-1]
    for table, query_len, context_len in requests:
        for place in range(context_len - query_len, context_len):
            past = arena[list(table), 0].flatten(0, 1)[: place + 1].float()
            latents, rotated = past[:, :width], past[:, width:]
            for head in range(q_latent.shape[1]):
                scores = latents @ q_latent[token, head].float()
                scores = (scores + rotated @ q_rope[token, head].float()) * scale
                out[token, head] = (scores.softmax(0) @ latents).to(q_latent.dtype)
            token += 1
    return out
