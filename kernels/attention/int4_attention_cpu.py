"""Attention to blocks of 4 bits an item, by source/int4_attention.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.attention.scoring import Scoring
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype
from baton.kernels.paging.arena_cpu import WIDE
from baton.kernels.paging.int4_arena import Int4Arena
from baton.kernels.paging.sequences import Sequences
from baton.kernels.paging.window import Window, as_number, num_first_of


def int4_attention(
    q: Tensor,
    arena: Int4Arena,
    sequences: Sequences,
    window: Window,
    scoring: Scoring,
    sinks: Tensor | None,
) -> Tensor:
    tokens, num_heads, width = q.shape
    out = torch.empty_like(q)
    made = Call(
        of_dtype("int4_attention", q.dtype),
        rows=tokens,
        inputs={
            "q": q.contiguous(),
            "arena": arena.units,
            "query_starts": sequences.query_starts,
            "context_lens": sequences.context_lens,
            "block_tables": sequences.block_tables,
            "sinks": sinks,
            "pass_rows": arena.pass_rows,
            "num_heads": num_heads,
            "num_kv_heads": arena.units.shape[1],
            "width": width,
            "block_size": arena.block_size,
            "table_stride": sequences.block_tables.stride(0),
            "window": as_number(window),
            "num_first": num_first_of(window),
            "items": WIDE,
            "unit_bytes": arena.units.shape[2],
            "has_float_sinks": sinks is not None and sinks.dtype is torch.float32,
            "scale": scoring.scale_of(width),
            "softcap": scoring.softcap or 0.0,
        },
        outputs={"out": out},
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return out
