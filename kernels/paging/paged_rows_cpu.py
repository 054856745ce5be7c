"""Rows into the paged cache, by the operator of source/cache_write/compress.cpp."""

from __future__ import annotations

from torch import Tensor

from baton.kernels.cpu.operators import Call, Pass, call, of_dtype, small_rows
from baton.kernels.paging.sequences import Sequences


def places_of(sequences: Sequences) -> dict[str, Tensor | int]:
    """The inputs with which operators find the slots of tokens."""
    return {
        "positions": sequences.positions,
        "query_starts": sequences.query_starts,
        **blocks_of(sequences),
    }


def blocks_of(sequences: Sequences) -> dict[str, Tensor | int]:
    """The inputs with which operators find the blocks of requests."""
    return {
        "block_tables": sequences.block_tables,
        "block_size": sequences.block_size,
        "table_stride": sequences.block_tables.stride(0),
    }


def write_rows(rows: Tensor, arena: Tensor, sequences: Sequences) -> None:
    if not arena.is_contiguous():
        raise ValueError("an arena on a CPU must be contiguous")
    made = Call(
        of_dtype("write_rows", arena.dtype),
        rows=len(rows),
        inputs={
            "x": rows.contiguous(),
            "arena": arena,
            "width": rows.shape[1],
            **places_of(sequences),
        },
        outputs={},
        alone_rows=small_rows(rows.nbytes // len(rows)),
    )
    call(made, Pass(num_tokens=len(rows), num_requests=sequences.num_requests))
