"""Compiled clamped gate; see source/elementwise/clamped_swiglu.cpp."""

from __future__ import annotations

from torch import Tensor

from baton.kernels.cpu.operators import Call, call, of_dtype, small_rows


def clamped_swiglu(gate_up: Tensor, alpha: float, limit: float, offset: float) -> Tensor:
    tokens, width = len(gate_up), gate_up.shape[1] // 2
    y = gate_up.new_empty(tokens, width)
    call(
        Call(
            of_dtype("clamped_gate", gate_up.dtype),
            rows=tokens,
            inputs={
                "gate_up": gate_up.contiguous(),
                "width": width,
                "alpha": alpha,
                "limit": limit,
                "offset": offset,
            },
            outputs={"y": y},
            alone_rows=small_rows(2 * width * gate_up.element_size()),
        )
    )
    return y
