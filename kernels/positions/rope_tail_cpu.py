"""Compiled rotary positions of the last dimensions of heads; see source/positions/rope_tail.cpp."""

from __future__ import annotations

from torch import Tensor

from baton.kernels.cpu.operators import Call, call, of_dtype, small_rows


def rope_tail(
    x: Tensor, cos: Tensor, sin: Tensor, *, is_back: bool, unit_eps: float | None
) -> Tensor:
    """x [T, N, H]"""
    tokens, heads, width = x.shape
    cos, sin, y = cos.contiguous(), sin.contiguous(), x.new_empty(x.shape)
    call(
        Call(
            of_dtype("rope_tail", x.dtype),
            rows=tokens,
            inputs={
                "x": x.contiguous(),
                "cos": cos,
                "sin": sin,
                "num_heads": heads,
                "width": width,
                "half": cos.shape[1],
                "is_back": is_back,
                "is_unit": unit_eps is not None,
                "unit_eps": unit_eps or 0.0,
            },
            outputs={"y": y},
            alone_rows=small_rows(y.nbytes // tokens),
        )
    )
    return y
