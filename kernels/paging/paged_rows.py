"""Vectors of tokens in a paged arena, by position:   arena [blocks][1][S][width]

The vector of position p of a request is in block p // S of its table, at p % S.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.paging import paged_rows_cpu as cpu
from baton.kernels.paging.sequences import Sequences


def write_rows(rows: Tensor, arena: Tensor, sequences: Sequences) -> None:
    """Write rows [T, width] at the new tokens; infinities become NaN."""
    if arena.shape[1:] != (1, sequences.block_size, rows.shape[1]):
        raise ValueError(f"shapes do not fit: {rows.shape=} {arena.shape=}")
    if operators.runs(rows, arena):
        cpu.write_rows(rows, arena, sequences)
        return
    positions = sequences.positions[: len(rows)]
    put_rows(rows, arena, owners_of(sequences, len(rows)), positions, sequences)


def owners_of(sequences: Sequences, num_tokens: int) -> Tensor:
    """[T] int64: the request of each new token."""
    starts = sequences.query_starts[: sequences.num_requests + 1]
    places = torch.arange(num_tokens, device=starts.device)
    return torch.searchsorted(starts, places, right=True) - 1


def put_rows(
    rows: Tensor, arena: Tensor, owners: Tensor, positions: Tensor, sequences: Sequences
) -> None:
    """Write rows [C, ..] to an arena, or to some of its columns; infinities become NaN."""
    blocks, slots = _places(owners, positions, sequences)
    arena[blocks, 0, slots] = nan_if_infinite(rows)


def nan_if_infinite(x: Tensor) -> Tensor:
    """x, with NaN in place of infinities: a score of minus infinity would hide the error."""
    return x + x * 0


def rows_at(arena: Tensor, owners: Tensor, positions: Tensor, sequences: Sequences) -> Tensor:
    """[.., width]: the vectors of the requests `owners` at `positions`, which have the same
    shape."""
    blocks, slots = _places(owners, positions, sequences)
    return arena[blocks, 0, slots]


def _places(owners: Tensor, positions: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
    size = sequences.block_size
    return sequences.block_tables[owners, positions // size], positions % size
