"""Attention by the operator of source/attention.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.attention.scoring import Scoring
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype
from baton.kernels.paging.arena_cpu import CpuArena
from baton.kernels.paging.quantized_arena import Arena
from baton.kernels.paging.sequences import Sequences
from baton.kernels.paging.window import Window, as_number, num_first_of


def paged_attention(
    q: Tensor,
    arena: Arena,
    sequences: Sequences,
    window: Window,
    scoring: Scoring,
    sinks: Tensor | None,
) -> Tensor:
    tokens, num_heads, width = q.shape
    layout = CpuArena.of(arena)
    out = torch.empty_like(q)
    made = Call(
        of_dtype("paged_attention", q.dtype),
        rows=tokens,
        inputs=(
            q.contiguous(),
            layout.memory,
            sequences.query_starts,
            sequences.context_lens,
            sequences.block_tables,
            sinks,
        ),
        outputs=(out,),
        ints=(
            num_heads,
            layout.num_heads,
            width,
            layout.block_size,
            sequences.block_tables.stride(0),
            as_number(window),
            layout.items,
            layout.unit_bytes,
            sinks is not None and sinks.dtype is torch.float32,
            num_first_of(window),
        ),
        floats=(scoring.scale_of(width), scoring.softcap or 0.0),
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return out
