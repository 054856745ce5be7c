"""Cases of low-rank updates (LoRA) on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.products import low_rank, low_rank_gpu
from bench.gpu.cases import Case, Sizes


def low_rank_cases(sizes: Sizes, device: str, dtype: torch.dtype = torch.bfloat16) -> list[Case]:
    """Updates by adapters of rank 16: one for all rows, or another for each."""
    (num_columns, width), rank = sizes.matrix, 16
    made: list[Case] = []
    for num_rows, adapters in ((sizes.rows[-1], sizes.rows[-1]), (max(20, sizes.tokens), 1)):
        down = torch.randn(adapters, 2, rank, width, device=device) / width**0.5
        up = torch.randn(adapters, rank, num_columns, device=device)
        parts = num_columns // 2, num_columns - num_columns // 2
        updates = low_rank.LowRank(down.to(dtype), up.to(dtype), parts)
        x, y = (torch.randn(num_rows, n, device=device).to(dtype) for n in (width, num_columns))
        numbers = torch.arange(num_rows, device=device) % adapters + 1
        made.append(
            Case(
                name=f"low rank {num_rows} rows, {adapters} adapters, {num_columns} x {width}",
                run=lambda given=(x, updates, numbers), y=y: _updated(y, *given),  # type: ignore[misc]
                expected=lambda given=(x, updates, numbers), y=y: low_rank.reference(y, *given),  # type: ignore[misc]
                tolerance=2e-2,
                num_bytes=updates.down.nbytes + updates.up.nbytes + x.nbytes + 4.0 * y.nbytes,
                num_flops=2.0 * num_rows * rank * (2 * width + num_columns),
            )
        )
    return made


def _updated(y: Tensor, x: Tensor, updates: low_rank.LowRank, numbers: Tensor) -> Tensor:
    """A copy of y, which the number of bytes counts."""
    out = y.clone()
    low_rank_gpu.add_low_rank_(out, x, updates.down, updates.up, updates.parts, numbers)
    return out
