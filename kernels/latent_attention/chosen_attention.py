"""Attention of each token to its chosen latents (DeepSeek V3.2), in the absorbed form.

    score[n, s] = scale (q_latent[n] . latent[s] + q_rope[n] . rope[s])         s among the chosen
    out[n]      = sum over s of softmax(score[n])[s] latent[s]                                [N, L]

The arena is that of mla_attention.py; the tokens are chosen in choose_tokens.py, by their slots. If
all visible tokens are chosen, the result equals that of mla_attention, on a CPU bit by bit.

T new tokens, N heads, L width of the latent, R of the rotated part, K tokens that are chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.latent_attention import chosen_attention_cpu as cpu
from baton.kernels.latent_attention.choose_tokens import Chosen
from baton.kernels.paging.sequences import Sequences

GATHERED_ITEMS = 16 << 20
"""Most items of latents that torch gathers at a time."""


def chosen_attention(
    q_latent: Tensor,
    q_rope: Tensor,
    arena: Tensor,
    chosen: Chosen,
    scale: float,
    *,
    is_batch_invariant: bool = False,
) -> Tensor:
    """q_latent [T, N, L] and q_rope [T, N, R] -> attention output [T, N, L]; `is_batch_invariant`
    as in mla_attention.py."""
    width = q_latent.shape[-1] + q_rope.shape[-1]
    if (
        q_latent.shape[:2] != q_rope.shape[:2]
        or arena.shape[1::2] != (1, width)
        or chosen.slots.shape[0] != len(q_latent)
        or chosen.positions.shape != q_latent.shape[:1]
    ):
        raise ValueError(
            f"do not fit: {q_latent.shape=} {q_rope.shape=} {arena.shape=} {chosen.slots.shape=}"
        )
    if q_latent.is_cuda:  # Triton, which CPUs do without
        from baton.kernels.latent_attention import batch_invariant_mla_attention_gpu as invariant
        from baton.kernels.latent_attention import mla_attention_gpu as gpu

        attend = (
            invariant.batch_invariant_mla_attention if is_batch_invariant else gpu.mla_attention
        )
        one_by_one = arena.view(-1, 1, 1, width)
        return attend(q_latent, q_rope, one_by_one, token_by_token(chosen), scale)
    if cpu.runs(q_latent, arena):
        return cpu.chosen_attention(q_latent, q_rope, arena, chosen, scale)
    return reference(q_latent, q_rope, arena, chosen, scale)


def token_by_token(chosen: Chosen) -> Sequences:
    """Treats each token as a request of its own, whose blocks of one token are the chosen ones."""
    num_tokens, most = chosen.slots.shape
    counts = chosen.counts
    return Sequences(
        num_requests=num_tokens,
        positions=counts - 1,
        query_starts=torch.arange(num_tokens + 1, device=chosen.slots.device),
        context_lens=counts,
        block_tables=chosen.slots,
        block_size=1,
        max_query_len=1,
        max_context_len=most,
    )


def reference(
    q_latent: Tensor, q_rope: Tensor, arena: Tensor, chosen: Chosen, scale: float
) -> Tensor:
    """The definition, in float32, a few tokens at a time, and the fallback on a CPU."""
    out, latents = torch.empty_like(q_latent), arena.view(-1, arena.shape[-1])
    most, width = chosen.slots.shape[1], q_latent.shape[-1]
    step = max(1, GATHERED_ITEMS // (most * latents.shape[1]))
    places, counts = torch.arange(most, device=arena.device), chosen.counts
    for first in range(0, len(out), step):
        tokens = slice(first, first + step)
        hidden = places >= counts[tokens].unsqueeze(1)  # [T, K]
        past = latents[chosen.slots[tokens].masked_fill(hidden, 0)].float()  # [T, K, L + R]
        past.masked_fill_(hidden.unsqueeze(-1), 0.0)  # may be another request's, and NaN
        q = torch.cat((q_latent[tokens], q_rope[tokens]), dim=-1).float()
        found = (q @ past.transpose(1, 2) * scale).masked_fill_(hidden.unsqueeze(1), -torch.inf)
        out[tokens] = (found.softmax(-1) @ past[..., :width]).to(out.dtype)
    return out
