"""Compiled products of each head with a matrix of its own; see source/products/head_linear.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, call, of_dtype
from baton.kernels.products import linear_cpu as linear


def pack(weight: Tensor) -> Tensor:
    """W [N, O, I] -> [N, panels, I / depth, 32, depth]"""
    return torch.stack([linear.pack(matrix, is_gated=False) for matrix in weight])


def head_linear(x: Tensor, panels: Tensor, num_rows: int) -> Tensor:
    """x [T, N, I] -> [T, N, O]. The last dimension of x must be contiguous."""
    tokens, heads, width = x.shape
    if x.stride(2) != 1 or x.dtype is not panels.dtype:
        raise ValueError(
            f"a product with {panels.dtype} weights takes contiguous rows of those, not {x.dtype} "
            f"with strides {x.stride()}"
        )
    y = x.new_empty(tokens, heads, num_rows)
    made = Call(
        of_dtype("head_linear", x.dtype),
        rows=tokens,
        inputs={
            "x": x,
            "panels": panels,
            "num_heads": heads,
            "num_outputs": num_rows,
            "width": width,
            "token_stride": x.stride(0),
            "head_stride": x.stride(1),
        },
        outputs={"y": y},
    )
    call(made)
    return y
