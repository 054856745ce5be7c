"""The choice of tokens by the operator of source/choose_tokens.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, Pass, call, of_dtype
from baton.kernels.paging.sequences import Sequences


def choose_tokens(
    q: Tensor, weights: Tensor, arena: Tensor, sequences: Sequences, num_chosen: int
) -> tuple[Tensor, Tensor]:
    """Slots and positions."""
    if not arena.is_contiguous():
        raise ValueError("an arena on a CPU must be contiguous")
    tokens, num_heads, width = q.shape
    slots = torch.empty(tokens, num_chosen, dtype=torch.int64)
    made = Call(
        of_dtype("choose_tokens", q.dtype),
        rows=tokens,
        inputs=(
            q.contiguous(),
            weights.contiguous(),
            arena,
            sequences.positions,
            sequences.query_starts,
            sequences.block_tables,
        ),
        outputs=(slots,),
        ints=(
            num_heads,
            width,
            sequences.block_size,
            sequences.block_tables.stride(0),
            num_chosen,
        ),
        floats=(width**-0.5, num_heads**-0.5),
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return slots, sequences.positions[:tokens]
