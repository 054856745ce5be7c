"""Attention to blocks sealed in 4 bits, by source/sealed_attention.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.attention.scoring import Scoring
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype
from baton.kernels.paging.sealed_arena import SealedArena
from baton.kernels.paging.sealed_arena_cpu import WIDE
from baton.kernels.paging.sequences import Sequences
from baton.kernels.paging.window import Window, as_number, num_first_of


def sealed_attention(
    q: Tensor,
    arena: SealedArena,
    sequences: Sequences,
    window: Window,
    scoring: Scoring,
    sinks: Tensor | None,
) -> Tensor:
    tokens, num_heads, width = q.shape
    out = torch.empty_like(q)
    made = Call(
        of_dtype("sealed_attention", q.dtype),
        rows=tokens,
        inputs=(
            q.contiguous(),
            arena.units,
            sequences.query_starts,
            sequences.context_lens,
            sequences.block_tables,
            sinks,
            arena.pass_rows,
        ),
        outputs=(out,),
        ints=(
            num_heads,
            arena.units.shape[1],
            width,
            arena.block_size,
            sequences.block_tables.stride(0),
            as_number(window),
            WIDE,
            arena.units.shape[2],
            sinks is not None and sinks.dtype is torch.float32,
            num_first_of(window),
        ),
        floats=(scoring.scale_of(width), scoring.softcap or 0.0),
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return out
