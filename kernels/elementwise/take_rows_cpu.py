"""Compiled gathering of rows; see source/elementwise/take_rows.cpp."""

from __future__ import annotations

from torch import Tensor

from baton.kernels.cpu.operators import Call, call, of_dtype, small_rows


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    x = x.contiguous()
    width = x.shape[-1]
    y = x.new_empty(len(rows), width)
    made = Call(
        of_dtype("take_rows", x.dtype),
        rows=len(rows),
        inputs={"x": x, "numbers": rows, "width": width},
        outputs={"y": y},
        alone_rows=small_rows(width * x.element_size()),
    )
    call(made)
    return y
