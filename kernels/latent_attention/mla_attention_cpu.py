"""Compiled latent attention; see source/latent_attention/mla_attention.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype
from baton.kernels.paging.paged_rows_cpu import blocks_of
from baton.kernels.paging.sequences import Sequences

MAX_ROW_BYTES = 576 * 4
"""Most bytes of a token's KV: a tile of wider queries would not stay in a core's cache."""


def runs(q_latent: Tensor, arena: Tensor) -> bool:
    """Whether the operator supports these queries and this arena."""
    row_bytes = arena.shape[-1] * arena.element_size()
    return row_bytes <= MAX_ROW_BYTES and operators.runs(q_latent, arena)


def mla_attention(
    q_latent: Tensor, q_rope: Tensor, arena: Tensor, sequences: Sequences, scale: float
) -> Tensor:
    if not arena.is_contiguous():
        raise ValueError("an arena on a CPU must be contiguous")
    tokens, num_heads, latent = q_latent.shape
    q_latent, q_rope = by_token(q_latent), by_token(q_rope)
    out = torch.empty(tokens, num_heads, latent, dtype=q_latent.dtype)
    made = Call(
        of_dtype("mla_attention", q_latent.dtype),
        rows=tokens,
        inputs={
            **latent_queries(q_latent, q_rope),
            "arena": arena,
            "query_starts": sequences.query_starts,
            "context_lens": sequences.context_lens,
            **blocks_of(sequences),
            "scale": scale,
        },
        outputs={"out": out},
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return out


def latent_queries(q_latent: Tensor, q_rope: Tensor) -> dict[str, Tensor | int]:
    """The input fields of queries, whose two parts are results of `by_token`."""
    _, num_heads, latent_dim = q_latent.shape
    return {
        "q_latent": q_latent,
        "q_rope": q_rope,
        "num_heads": num_heads,
        "latent_dim": latent_dim,
        "rope_dim": q_rope.shape[-1],
        "latent_token": q_latent.stride(0),
        "latent_head": q_latent.stride(1),
        "rope_token": q_rope.stride(0),
        "rope_head": q_rope.stride(1),
    }


def by_token(x: Tensor) -> Tensor:
    """x [T, N, width], possibly a part of wider heads; or a copy with contiguous tokens if its
    strides depended on T, which a tape does not allow."""
    token, head, item = x.stride()
    return x if item == 1 and token >= x.shape[1] * head else x.contiguous()
