"""Compiled attention to chosen latents; see source/latent_attention/chosen_attention.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, Pass, call, of_dtype
from baton.kernels.latent_attention.mla_attention_cpu import by_token, latent_queries, runs

if TYPE_CHECKING:
    from baton.kernels.latent_attention.choose_tokens import Chosen

__all__ = ["chosen_attention", "runs"]


def chosen_attention(
    q_latent: Tensor, q_rope: Tensor, arena: Tensor, chosen: Chosen, scale: float
) -> Tensor:
    if not arena.is_contiguous():
        raise ValueError("an arena on a CPU must be contiguous")
    tokens, num_heads, latent = q_latent.shape
    q_latent, q_rope = by_token(q_latent), by_token(q_rope)
    out = torch.empty(tokens, num_heads, latent, dtype=q_latent.dtype)
    made = Call(
        of_dtype("chosen_attention", q_latent.dtype),
        rows=tokens,
        inputs={
            **latent_queries(q_latent, q_rope),
            "arena": arena,
            "positions": chosen.positions,
            "slots": chosen.slots,
            "num_chosen": chosen.slots.shape[1],
            "scale": scale,
        },
        outputs={"out": out},
    )
    call(made, Pass(num_tokens=tokens, num_requests=tokens))
    return out
