"""Compiled choice of tokens; see source/latent_attention/choose_tokens.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, Pass, call, of_dtype
from baton.kernels.paging.paged_rows_cpu import places_of
from baton.kernels.paging.sequences import Sequences


def choose_tokens(
    q: Tensor, weights: Tensor, arena: Tensor, sequences: Sequences, num_chosen: int
) -> tuple[Tensor, Tensor]:
    """Returns slots and positions."""
    if not arena.is_contiguous():
        raise ValueError("an arena on a CPU must be contiguous")
    tokens, num_heads, width = q.shape
    slots = torch.empty(tokens, num_chosen, dtype=torch.int64)
    made = Call(
        of_dtype("choose_tokens", q.dtype),
        rows=tokens,
        inputs={
            "q": q.contiguous(),
            "weights": weights.contiguous(),
            "arena": arena,
            "num_heads": num_heads,
            "width": width,
            "num_chosen": num_chosen,
            "key_scale": width**-0.5,
            "head_scale": num_heads**-0.5,
            **places_of(sequences),
        },
        outputs={"slots": slots},
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return slots, sequences.positions[:tokens]
