"""Compiled products with int8 and int4 weights; see source/products/quantized_panel.h for the
layout.

x [T, K]  --int8_rows-->  quantized rows  --int8_linear, int4_linear, ...-->  y [T, N]
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, call, of_dtype
from baton.kernels.products.linear_cpu import GATES

GROUP = 32
ALIGNMENT = 64


class Quantized(Protocol):
    """The fields of a `PackedQuantizedWeight` that an operator reads."""

    @property
    def bits(self) -> int: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def packed(self) -> Tensor: ...
    @property
    def scales(self) -> Tensor | None: ...


def linear(x: Tensor, weight: Quantized, bias: Tensor | None) -> Tensor:
    y = x.new_empty(len(x), weight.shape[0])
    _multiply("linear", x, weight, bias, y)
    return y


def gated_linear(x: Tensor, weight: Quantized, activation: str, bias: Tensor | None) -> Tensor:
    y = x.new_empty(len(x), weight.shape[0] // 2)
    _multiply("gated_linear", x, weight, bias, y, gating=GATES[activation])
    return y


def logits(x: Tensor, weight: Quantized) -> Tensor:
    y = x.new_empty(len(x), weight.shape[0], dtype=torch.float32)
    _multiply("logits", x, weight, None, y)
    return y


def _multiply(
    name: str, x: Tensor, weight: Quantized, bias: Tensor | None, y: Tensor, **inputs: int
) -> None:
    num_outputs, width = weight.shape
    if x.dim() != 2 or x.shape[1] != width or x.dtype is not weight.dtype:
        raise ValueError(
            f"a product with a weight for {weight.dtype} of width {width} takes rows of those, "
            f"not {x.dtype} {tuple(x.shape)}"
        )
    if bias is not None and (bias.shape != (num_outputs,) or bias.dtype is not x.dtype):
        raise ValueError(
            f"a bias of {num_outputs} {x.dtype} is wanted: {bias.shape=} {bias.dtype=}"
        )
    rows = int8_rows(x)
    call(
        Call(
            of_dtype(f"int{weight.bits}_{name}", x.dtype),
            rows=len(x),
            inputs={
                "x": rows,
                "weights": weight.packed,
                "scales": weight.scales,
                "bias": bias,
                "num_outputs": num_outputs,
                "padded_width": padded(width),
                "row_bytes": rows.shape[1],
                **inputs,
            },
            outputs={"y": y},
        )
    )


def int8_rows(x: Tensor, each: int = 1) -> Tensor:
    """Quantizes x [T, K], whose rows need not be adjacent, to bytes [T, row_bytes(K)]; see
    source/products/int8_rows.h.

    With `each` > 1, x is contiguous [T, each * K] and each of its rows counts as `each` rows of K
    items: the result is [T, each * row_bytes(K)].
    """
    if x.stride(1) != 1 or (each > 1 and not x.is_contiguous()):
        raise ValueError(f"the numbers of a row lie apart: {x.stride()=}")
    width = x.shape[1] // each
    stride = row_bytes(width)
    rows = torch.empty(len(x), each * stride, dtype=torch.uint8)
    call(
        Call(
            of_dtype("int8_rows", x.dtype),
            rows=len(x),
            inputs={
                "x": x,
                "width": width,
                "padded_width": padded(width),
                "row_bytes": stride,
                "stride": x.stride(0) if each == 1 else width,
                "each": each,
            },
            outputs={"y": rows},
        )
    )
    return rows


def row_bytes(width: int) -> int:
    """Bytes of a quantized row: its items, the offsets that groups and row add to a product, and
    its scale."""
    used = padded(width) + 4 * (padded(width) // GROUP) + 8
    return -(-used // ALIGNMENT) * ALIGNMENT


def padded(width: int) -> int:
    return -(-width // GROUP) * GROUP


def embedding(ids: Tensor, weight: Quantized, scale: float | None) -> Tensor:
    """ids [T] int64 -> W[ids] * scale [T, K]; both factors are rounded to the dtype first."""
    width = weight.shape[1]
    y = torch.empty(len(ids), width, dtype=weight.dtype)
    rounded = torch.tensor(1.0 if scale is None else scale, dtype=weight.dtype).item()
    call(
        Call(
            of_dtype(f"int{weight.bits}_embedding", weight.dtype),
            rows=len(ids),
            inputs={
                "ids": ids,
                "panels": weight.packed,
                "scales": weight.scales,
                "width": width,
                "padded_width": padded(width),
                "scale": rounded,
            },
            outputs={"y": y},
        )
    )
    return y


def pack(
    bits: int, weight: Tensor, panels: Tensor, scales: Tensor | None, *, is_gated: bool
) -> None:
    """Quantizes and packs W [N, K] into `panels`, and into `scales` if these are stored apart."""
    num_outputs, width = weight.shape
    call(
        Call(
            of_dtype(f"int{bits}_pack", weight.dtype),
            rows=len(panels),
            inputs={
                "weight": weight.contiguous(),
                "num_outputs": num_outputs,
                "width": width,
                "padded_width": padded(width),
                "is_gated": is_gated,
            },
            outputs={"panels": panels, "scales": scales},
        )
    )
