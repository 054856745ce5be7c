"""Compiled products by experts; source/experts.h says how they share them out.

    x [T, D]  --experts_gate_up-->  [P, F], in the order of pairs  --experts_down-->  y [T, D]

P = T C pairs; what lies between is kept as T rows of C F numbers. Weights of few bits multiply rows
in eight bits: each product rounds its own, `int8_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, call, of_dtype
from baton.kernels.products import quantized_linear_cpu as quantized_linear

GATINGS: Mapping[str, int] = {"silu": 0, "gelu_pytorch_tanh": 1, "clamped_swiglu": 2}
"""As source/experts.h numbers them."""


class Stack(Protocol):
    """What an operator reads of the weights of experts."""

    @property
    def bits(self) -> int:
        """8 or 4; 0 if they are as wide as x."""

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
    """x [T, D] -> [T, C F]; `scaled`: of x times the share of a pair."""
    x = x.contiguous()
    inner = x.new_empty(len(x), routed.shares.shape[1] * weight.shape[1] // 2)
    shares = routed.shares if scaled else None
    call(
        Call(
            _name("gate_up", weight, x.dtype),
            rows=len(x),
            inputs=(*_rows(x, weight, 1), bias, routed.pairs, routed.stops, shares),
            outputs=(inner,),
            ints=_ints(weight, routed, GATINGS[gating.activation]),
            floats=(gating.alpha, gating.limit, gating.offset),
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
    """[T, C F] -> y [T, D]; `scaled`: of the products times the share of a pair.

    What is shared, [T, D], is added, as far as the sigmoid of its gate, [T, 1], lets it through.
    """
    y = inner.new_empty(len(inner), weight.shape[1])
    rows = _rows(inner, weight, routed.shares.shape[1])
    shares = routed.shares if scaled else None
    call(
        Call(
            _name("down", weight, inner.dtype),
            rows=len(inner),
            inputs=(*rows, bias, routed.pairs, routed.stops, shares, *shared),
            outputs=(y,),
            ints=_ints(weight, routed, 0),
        )
    )
    return y


def _name(product: str, weight: Stack, dtype: torch.dtype) -> str:
    kind = f"int{weight.bits}_" if weight.bits else ""
    return of_dtype(f"experts_{kind}{product}", dtype)


def _rows(x: Tensor, weight: Stack, each: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """What is multiplied, `each` rows in one of x, and by what."""
    rows = quantized_linear.int8_rows(x, each) if weight.bits else x
    return rows, weight.packed, weight.scales


def _ints(weight: Stack, routed: Choice, gating: int) -> tuple[int, ...]:
    num_experts, num_rows, width = weight.shape
    num_choices = routed.shares.shape[1]
    narrow = (quantized_linear.padded(width), quantized_linear.row_bytes(width))
    return num_rows, width, num_experts, num_choices, gating, *narrow
