"""Compiled attention; see source/attention/paged_attention.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.attention.scoring import Scoring
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype
from baton.kernels.paging.arena_cpu import CpuArena
from baton.kernels.paging.sequences import Sequences
from baton.kernels.paging.window import Window, as_number, num_first_of


def paged_attention(
    q: Tensor,
    arena: CpuArena,
    sequences: Sequences,
    window: Window,
    scoring: Scoring,
    sinks: Tensor | None,
) -> Tensor:
    out = torch.empty_like(q)
    made = Call(
        of_dtype("paged_attention", q.dtype),
        rows=len(q),
        inputs={
            **kv_inputs(q, sequences, window, scoring, sinks),
            "arena": arena.memory,
            "num_kv_heads": arena.num_heads,
            "block_size": arena.block_size,
            "items": arena.items,
            "unit_bytes": arena.unit_bytes,
        },
        outputs={"out": out},
    )
    call(made, Pass(num_tokens=len(q), num_requests=sequences.num_requests))
    return out


def kv_inputs(
    q: Tensor, sequences: Sequences, window: Window, scoring: Scoring, sinks: Tensor | None
) -> dict[str, Tensor | float | None]:
    """The fields of `KvArgs` (source/attention/attention_kv.h), except the KV layout."""
    _, num_heads, width = q.shape
    return {
        "q": q.contiguous(),
        "query_starts": sequences.query_starts,
        "context_lens": sequences.context_lens,
        "block_tables": sequences.block_tables,
        "sinks": sinks,
        "num_heads": num_heads,
        "width": width,
        "table_stride": sequences.block_tables.stride(0),
        "window": as_number(window),
        "num_first": num_first_of(window),
        "has_float_sinks": sinks is not None and sinks.dtype is torch.float32,
        "scale": scoring.scale_of(width),
        "softcap": scoring.softcap or 0.0,
    }
