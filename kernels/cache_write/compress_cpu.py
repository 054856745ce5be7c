"""Rows into the paged cache, and entries out of them, by the operators of source/compress.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from baton.kernels.cpu.operators import Call, Pass, call, of_dtype, small_rows
from baton.kernels.paging.sequences import Sequences

if TYPE_CHECKING:
    from baton.kernels.cache_write.compress import EntryNorm, Turning, Windows


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


def close_windows(  # noqa: PLR0913  # as the kernel
    arena: Tensor,
    windows: Windows,
    bias: Tensor,
    norm: EntryNorm,
    turning: Turning,
    sequences: Sequences,
    num_tokens: int,
) -> None:
    places, sizes = places_of(sequences)
    half = len(turning.frequencies)
    made = Call(
        of_dtype("close_windows", arena.dtype),
        rows=num_tokens,
        inputs=(arena, *places, bias, norm.weight, turning.frequencies),
        outputs=(),
        ints=(windows.num_tokens, windows.num_series, windows.width, half, *sizes),
        floats=(norm.eps, turning.factor),
    )
    call(made, Pass(num_tokens=num_tokens, num_requests=sequences.num_requests))
