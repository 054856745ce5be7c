"""Compiled scaling of queries by position; see source/positions/query_temperature.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, call, of_dtype, small_rows


def query_temperature(x: Tensor, positions: Tensor, growth: float, step: float) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    width = x[0].numel()
    call(
        Call(
            of_dtype("query_temperature", x.dtype),
            rows=len(x),
            inputs={
                "x": x,
                "positions": positions,
                "width": width,
                "growth": growth,
                "step": step,
            },
            outputs={"y": y},
            alone_rows=small_rows(2 * width * x.element_size()),
        )
    )
    return y
