"""The operator of source/products/low_rank.cpp."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, call, of_dtype


def add_low_rank_(
    y: Tensor, x: Tensor, down: Tensor, up: Tensor, parts: tuple[int, ...], numbers: Tensor
) -> None:
    """See `low_rank.add_low_rank_`; of float32 or bfloat16, and checked."""
    num_adapters, num_parts, rank, width = down.shape
    call(
        Call(
            of_dtype("add_low_rank", x.dtype),
            rows=len(x),
            inputs={
                "x": x,
                "down": down,
                "up": up,
                "parts": _tensor_of(parts),
                "numbers": numbers,
                "num_adapters": num_adapters,
                "num_parts": num_parts,
                "rank": rank,
                "width": width,
                "stride": x.stride(0),
            },
            outputs={"y": y},
        )
    )


@cache
def _tensor_of(parts: tuple[int, ...]) -> Tensor:
    """Kept, because making it takes as long as the update of a row."""
    return torch.tensor(parts)
