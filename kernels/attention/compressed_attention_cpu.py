"""Attention to windows and entries by the operators of source/compressed_attention.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.attention.entries import Entries, EntryIndex
from baton.kernels.cache_write.windows import Windows
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype
from baton.kernels.paging.paged_rows_cpu import places_of
from baton.kernels.paging.sequences import Sequences


def _row(windows: Windows) -> tuple[int, int, int]:
    return windows.num_tokens, windows.row_width, windows.entry.start


def choose(index: EntryIndex, sequences: Sequences) -> Tensor:
    """[T, 1 + top_k] int32: how many entries a token sees, and which."""
    tokens, heads, width = index.q.shape
    chosen = torch.empty(tokens, 1 + index.top_k, dtype=torch.int32)
    places, sizes = places_of(sequences)
    made = Call(
        of_dtype("choose_entries", index.q.dtype),
        rows=tokens,
        inputs=(index.q.contiguous(), index.weights.contiguous(), index.arena, *places),
        outputs=(chosen,),
        ints=(heads, width, *_row(index.windows), *sizes, index.top_k),
        floats=(index.scale,),
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return chosen


def attend(  # noqa: PLR0913  # as the kernel
    q: Tensor,
    arena: Tensor,
    sequences: Sequences,
    window: int,
    entries: Entries | None,
    scale: float,
    sinks: Tensor,
) -> Tensor:
    tokens, heads, width = q.shape
    out, chosen = torch.empty_like(q), None
    row, of_entries = (1, 0, 0), None
    if entries is not None:
        row, of_entries = _row(entries.windows), entries.arena
        chosen = None if entries.index is None else choose(entries.index, sequences)
    places, sizes = places_of(sequences)
    made = Call(
        of_dtype("compressed_attention", q.dtype),
        rows=tokens,
        inputs=(q.contiguous(), arena, *places, sinks, of_entries, chosen),
        outputs=(out,),
        ints=(heads, width, window, *sizes, *row, 0 if chosen is None else chosen.shape[1]),
        floats=(scale,),
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return out
