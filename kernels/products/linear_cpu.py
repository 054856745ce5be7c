"""Compiled matrix products with packed weights; see kernels/products/packed_weight.py for the
layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from baton.kernels.cpu import huge_pages
from baton.kernels.cpu.operators import Call, call, of_dtype

PANEL = 32
DEPTHS: Mapping[torch.dtype, int] = {torch.float32: 1, torch.bfloat16: 2}
"""Number of consecutive items of a row of W that are stored together."""
GATES: Mapping[str, int] = {"silu": 0, "gelu_pytorch_tanh": 1}
"""Numbers of the gating functions in source/products/linear.cpp."""


def pack(weight: Tensor, is_gated: bool) -> Tensor:
    """W [N, K] -> [panels, K / depth, 32, depth]"""
    packed = huge_pages.empty(packed_shape(weight.shape, weight.dtype, is_gated), weight.dtype)
    pack_into(packed, weight, is_gated)
    return packed


def packed_shape(shape: Sequence[int], dtype: torch.dtype, is_gated: bool) -> tuple[int, ...]:
    num_rows, width = shape
    depth = DEPTHS[dtype]
    num_panels = -(-num_rows // PANEL)
    if is_gated:
        num_panels = -(-num_rows // 2 // (PANEL // 2))
    return num_panels, width // depth, PANEL, depth


def pack_into(packed: Tensor, weight: Tensor, is_gated: bool) -> None:
    num_rows, width = weight.shape
    call(
        Call(
            "pack_weight",
            rows=num_rows,
            inputs={
                "weight": weight.contiguous(),
                "row_bytes": width * weight.itemsize,
                "num_panels": len(packed),
                "is_gated": is_gated,
            },
            outputs={"packed": packed},
        )
    )


def unpack(packed: Tensor, num_rows: int, is_gated: bool) -> Tensor:
    _, num_steps, _, depth = packed.shape
    by_column = packed.transpose(1, 2)  # [panels, 32, K / depth, depth]
    if not is_gated:
        return by_column.reshape(-1, num_steps * depth)[:num_rows]
    halves = by_column.view(len(packed), 2, PANEL // 2, num_steps, depth).transpose(0, 1)
    rows: Tensor = halves.reshape(2, -1, num_steps * depth)[:, : num_rows // 2]
    return rows.flatten(0, 1)


def linear(x: Tensor, packed: Tensor, num_rows: int, bias: Tensor | None) -> Tensor:
    y = x.new_empty(len(x), num_rows)
    _call("linear", x, packed, bias, y, num_rows)
    return y


def logits(x: Tensor, packed: Tensor, num_rows: int) -> Tensor:
    y = x.new_empty(len(x), num_rows, dtype=torch.float32)
    _call("logits", x, packed, None, y, num_rows)
    return y


def gated_linear(
    x: Tensor, packed: Tensor, num_rows: int, activation: str, bias: Tensor | None
) -> Tensor:
    y = x.new_empty(len(x), num_rows // 2)
    _call("gated_linear", x, packed, bias, y, num_rows, gating=GATES[activation])
    return y


def _call(  # as the products
    name: str,
    x: Tensor,
    packed: Tensor,
    bias: Tensor | None,
    y: Tensor,
    num_rows: int,
    **inputs: int,
) -> None:
    width = packed.shape[1] * packed.shape[3]
    if x.dim() != 2 or x.shape[1] != width or x.stride(1) != 1 or x.dtype is not packed.dtype:
        raise ValueError(
            f"a product with {packed.dtype} weights of width {width} takes rows of those, not "
            f"{x.dtype} {tuple(x.shape)} with strides {x.stride()}"
        )
    if bias is not None and (bias.shape != (num_rows,) or bias.dtype is not x.dtype):
        raise ValueError(f"a bias of {num_rows} {x.dtype} is wanted: {bias.shape=} {bias.dtype=}")
    call(
        Call(
            of_dtype(name, x.dtype),
            rows=len(x),
            inputs={
                "x": x,
                "weight": packed,
                "bias": bias,
                "num_outputs": num_rows,
                "width": width,
                "stride": x.stride(0),
                **inputs,
            },
            outputs={"y": y},
        )
    )
