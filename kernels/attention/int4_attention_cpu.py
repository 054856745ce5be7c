"""Compiled attention to int4 blocks; see source/attention/int4_attention.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.attention.paged_attention_cpu import kv_inputs
from baton.kernels.attention.scoring import Scoring
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype
from baton.kernels.paging.arena_cpu import WIDE
from baton.kernels.paging.int4_arena import Int4Arena
from baton.kernels.paging.sequences import Sequences
from baton.kernels.paging.window import Window


def int4_attention(
    q: Tensor,
    arena: Int4Arena,
    sequences: Sequences,
    window: Window,
    scoring: Scoring,
    sinks: Tensor | None,
) -> Tensor:
    out = torch.empty_like(q)
    made = Call(
        of_dtype("int4_attention", q.dtype),
        rows=len(q),
        inputs={
            **kv_inputs(q, sequences, window, scoring, sinks),
            "arena": arena.units,
            "num_kv_heads": arena.units.shape[1],
            "block_size": arena.block_size,
            "items": WIDE,
            "unit_bytes": arena.units.shape[2],
            "pass_rows": arena.pass_rows,
        },
        outputs={"out": out},
    )
    call(made, Pass(num_tokens=len(q), num_requests=sequences.num_requests))
    return out
