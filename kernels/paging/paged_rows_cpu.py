"""Rows into the paged cache, by the operator of source/compress.cpp."""

from __future__ import annotations

from torch import Tensor

from baton.kernels.cpu.operators import Call, Pass, call, of_dtype, small_rows
from baton.kernels.paging.sequences import Sequences


def places_of(sequences: Sequences) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
    """What operators find tokens by: three inputs, and two numbers."""
    tables = sequences.block_tables
    found = (sequences.positions, sequences.query_starts, tables)
    return found, (sequences.block_size, tables.stride(0))


def write_rows(rows: Tensor, arena: Tensor, sequences: Sequences) -> None:
    if not arena.is_contiguous():
        raise ValueError("an arena on a CPU must be contiguous")
    places, sizes = places_of(sequences)
    made = Call(
        of_dtype("write_rows", arena.dtype),
        rows=len(rows),
        inputs=(rows.contiguous(), arena, *places),
        outputs=(),
        ints=(rows.shape[1], *sizes),
        alone_rows=small_rows(rows.nbytes // len(rows)),
    )
    call(made, Pass(num_tokens=len(rows), num_requests=sequences.num_requests))
