"""Compiled MoE products; see source/experts/moe.h for the division of work.

    x [T, D]  --moe_gate_up-->  [P, F], in the order of pairs  --moe_down-->  y [T, D]

P = T C pairs. The intermediate result is stored as [T, C F]. Quantized weights multiply activations
of 8 bits: each product quantizes its input first (`int8_rows`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, call, of_dtype
from baton.kernels.products import quantized_linear_cpu as quantized_linear

GATINGS: Mapping[str, int] = {"silu": 0, "gelu_pytorch_tanh": 1, "clamped_swiglu": 2}
"""Numbers of the gating functions in source/experts/moe.h."""


class Stack(Protocol):
    """The fields of experts' weights that an operator reads."""

    @property
    def bits(self) -> int:
        """8 or 4; 0 for unquantized weights."""

    @property
    def packed(self) -> Tensor: ...
    @property
    def scales(self) -> Tensor | None: ...
    @property
    def shape(self) -> tuple[int, int, int]: ...


class Gating(Protocol):
    @property
    def activation(self) -> str: ...
    @property
    def alpha(self) -> float: ...
    @property
    def limit(self) -> float: ...
    @property
    def offset(self) -> float: ...


class Choice(Protocol):
    """See `Routed` of kernels/experts/routing.py."""

    @property
    def shares(self) -> Tensor: ...
    @property
    def pairs(self) -> Tensor: ...
    @property
    def stops(self) -> Tensor: ...


def gate_up(
    x: Tensor, weight: Stack, bias: Tensor | None, gating: Gating, routed: Choice, *, scaled: bool
) -> Tensor:
    """x [T, D] -> [T, C F]; `scaled`: multiply x by the share of each pair first."""
    x = x.contiguous()
    inner = x.new_empty(len(x), routed.shares.shape[1] * weight.shape[1] // 2)
    call(
        Call(
            _name("gate_up", weight, x.dtype),
            rows=len(x),
            inputs={
                **_inputs(x, 1, weight, bias, routed, scaled=scaled),
                "gating": GATINGS[gating.activation],
                "alpha": gating.alpha,
                "limit": gating.limit,
                "offset": gating.offset,
            },
            outputs={"y": inner},
        )
    )
    return inner


def down(
    inner: Tensor,
    weight: Stack,
    bias: Tensor | None,
    routed: Choice,
    shared: tuple[Tensor | None, Tensor | None],
    *,
    scaled: bool,
) -> Tensor:
    """[T, C F] -> y [T, D]; `scaled`: multiply each product by the share of its pair.

    The shared expert's output [T, D] is added, multiplied by the sigmoid of its gate [T, 1] if
    there is one.
    """
    y = inner.new_empty(len(inner), weight.shape[1])
    each = routed.shares.shape[1]
    call(
        Call(
            _name("down", weight, inner.dtype),
            rows=len(inner),
            inputs={
                **_inputs(inner, each, weight, bias, routed, scaled=scaled),
                "shared": shared[0],
                "shared_gate": shared[1],
            },
            outputs={"y": y},
        )
    )
    return y


def _name(product: str, weight: Stack, dtype: torch.dtype) -> str:
    kind = f"int{weight.bits}_" if weight.bits else ""
    return of_dtype(f"moe_{kind}{product}", dtype)


def _inputs(
    x: Tensor, each: int, weight: Stack, bias: Tensor | None, routed: Choice, *, scaled: bool
) -> dict[str, Tensor | int | None]:
    """The inputs common to both products. `each`: rows of activations per row of x."""
    num_experts, num_outputs, width = weight.shape
    return {
        "x": quantized_linear.int8_rows(x, each) if weight.bits else x,
        "weights": weight.packed,
        "scales": weight.scales,
        "bias": bias,
        "pairs": routed.pairs,
        "stops": routed.stops,
        "shares": routed.shares if scaled else None,
        "num_outputs": num_outputs,
        "width": width,
        "num_experts": num_experts,
        "num_choices": routed.shares.shape[1],
        "padded_width": quantized_linear.padded(width),
        "row_bytes": quantized_linear.row_bytes(width),
    }
