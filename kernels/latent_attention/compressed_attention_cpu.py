"""Compiled attention to windows and entries; see
source/latent_attention/compressed_attention.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cache_write.windows import Windows
from baton.kernels.cpu.operators import Call, Pass, call, of_dtype
from baton.kernels.latent_attention.entries import Entries, EntryIndex
from baton.kernels.paging.paged_rows_cpu import places_of
from baton.kernels.paging.sequences import Sequences


def _entries_of(windows: Windows) -> dict[str, int]:
    """The inputs with which the operators find entries."""
    return {
        "window_tokens": windows.num_tokens,
        "row_width": windows.row_width,
        "entry_start": windows.entry.start,
    }


_NO_ENTRIES = {"window_tokens": 1, "row_width": 0, "entry_start": 0}


def choose(index: EntryIndex, sequences: Sequences) -> Tensor:
    """[T, 1 + top_k] int32: the number of chosen entries of a token, and their numbers."""
    tokens, heads, width = index.q.shape
    chosen = torch.empty(tokens, 1 + index.top_k, dtype=torch.int32)
    made = Call(
        of_dtype("choose_entries", index.q.dtype),
        rows=tokens,
        inputs={
            "q": index.q.contiguous(),
            "weights": index.weights.contiguous(),
            "arena": index.arena,
            "num_heads": heads,
            "width": width,
            "top_k": index.top_k,
            "scale": index.scale,
            **_entries_of(index.windows),
            **places_of(sequences),
        },
        outputs={"chosen": chosen},
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
    if entries is not None:
        chosen = None if entries.index is None else choose(entries.index, sequences)
    made = Call(
        of_dtype("compressed_attention", q.dtype),
        rows=tokens,
        inputs={
            "q": q.contiguous(),
            "arena": arena,
            "sinks": sinks,
            "entries": None if entries is None else entries.arena,
            "chosen": chosen,
            "num_heads": heads,
            "width": width,
            "window": window,
            "chosen_stride": 0 if chosen is None else chosen.shape[1],
            "scale": scale,
            **(_NO_ENTRIES if entries is None else _entries_of(entries.windows)),
            **places_of(sequences),
        },
        outputs={"out": out},
    )
    call(made, Pass(num_tokens=tokens, num_requests=sequences.num_requests))
    return out
