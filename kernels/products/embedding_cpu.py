"""Compiled look-up of the rows of a table, dense or packed."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, call, of_dtype, small_rows

CACHE_LINE = 64


def embedding(ids: Tensor, table: Tensor, scale: float | None) -> Tensor:
    """ids [T] int64, table [V, D] -> [T, D]"""
    width = table.shape[1]
    return _look_up(ids, table, scale, width=width, touched_bytes=width * table.itemsize)


def packed_embedding(ids: Tensor, packed: Tensor, scale: float | None) -> Tensor:
    """The same for a table that was packed by kernels/products/linear_cpu.py."""
    _, num_steps, _, depth = packed.shape
    width = num_steps * depth
    return _look_up(ids, packed, scale, width=width, touched_bytes=num_steps * CACHE_LINE)


def _look_up(
    ids: Tensor, table: Tensor, scale: float | None, *, width: int, touched_bytes: int
) -> Tensor:
    y = table.new_empty(len(ids), width)
    rounded = 1.0 if scale is None else torch.tensor(scale, dtype=table.dtype).item()
    call(
        Call(
            of_dtype("embedding", table.dtype),
            rows=len(ids),
            inputs={
                "ids": ids.contiguous(),
                "table": table,
                "width": width,
                "is_packed": table.dim() > 2,
                "scale": rounded,
            },
            outputs={"y": y},
            alone_rows=small_rows(touched_bytes),
        )
    )
    return y
