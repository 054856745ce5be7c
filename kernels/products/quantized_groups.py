"""Converts quantized weights of checkpoints to the format of kernels/products/quantized_weight.py.

Groups that are wider than kernels support are split, and each part gets the scale of the whole.
Matrices that are multiplied as one are stacked; their scales are repeated until each is for the
same number of outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from baton.kernels.products import mxfp4
from baton.kernels.products.quantized_weight import INT4_GROUPS, QuantizedWeight, in_halves

STEP = 128
"""Inputs that kernels process at a time: groups of int8 must be multiples of it."""


def quantized_groups(
    items: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    bits: int,
    *,
    dtype: torch.dtype,
    order: Tensor | None = None,
) -> QuantizedWeight | None:
    """A weight (items - zeros) * scales from uint8 items [N, K], scales [N, G] and zero points [N,
    G]; None if no kernel supports it.

    `zeros` = None: the zero point is the middle of the range. `order`: the input that each column
    of items belongs to.
    """
    middle = 1 << bits - 1
    if zeros is not None and bool((zeros == middle).all()):
        zeros = None
    (num_columns, width), num_groups = items.shape, scales.shape[1]
    if width % num_groups:
        return None
    group = width // num_groups
    if bits == 8:
        if zeros is not None or (num_groups > 1 and group % STEP):
            return None
        whole = (items ^ 128).view(torch.int8).contiguous()  # in two's complement: less 128
        kept = (1, group if num_groups > 1 else 0)
        return QuantizedWeight(whole, scales, kept, dtype, order=order)
    cut = next((cut for cut in sorted(INT4_GROUPS, reverse=True) if group % cut == 0), None)
    if cut is None:
        return None
    return QuantizedWeight(
        in_halves(items.reshape(num_columns, -1, cut)),
        scales.repeat_interleave(group // cut, 1).contiguous(),
        (1, cut),
        dtype,
        zeros=None if zeros is None else zeros.repeat_interleave(group // cut, 1).contiguous(),
        order=order,
    )


def quantized_fp4(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> QuantizedWeight:
    """An MXFP4 weight as stored: blocks uint8 [N, G, 16], two items per byte, and scales [N, G]."""
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(2)  # [N, G, 32]
    return QuantizedWeight(in_halves(codes), scales.view(torch.uint8), (1, mxfp4.GROUP), dtype)


def stack(weights: Sequence[QuantizedWeight]) -> QuantizedWeight | None:
    """The matrices stacked along the outputs; None if their formats differ."""
    first = weights[0]
    if len(weights) == 1:
        return first
    if any(not _is_alike(first, other) for other in weights[1:]):
        return None
    above = [weight.shape[0] for weight in weights[:-1]]
    rows = math.gcd(*(weight.group[0] for weight in weights), *above)
    zeros = None
    if any(weight.zeros is not None for weight in weights):
        zeros = torch.cat([_zeros(weight) for weight in weights])
    return replace(
        first,
        items=torch.cat([weight.items for weight in weights]),
        scales=torch.cat([_scales(weight, rows) for weight in weights]),
        group=(rows, first.group[1]),
        zeros=zeros,
    )


def rows_of(weight: QuantizedWeight, rows: Tensor) -> QuantizedWeight | None:
    """The given outputs in the given order; None if outputs share scales."""
    if weight.group[0] != 1:
        return None
    zeros = None if weight.zeros is None else weight.zeros[rows]
    return replace(weight, items=weight.items[rows], scales=weight.scales[rows], zeros=zeros)


def _is_alike(one: QuantizedWeight, other: QuantizedWeight) -> bool:
    return (
        one.items.dtype is other.items.dtype
        and one.scales.dtype is other.scales.dtype
        and one.shape[1] == other.shape[1]
        and one.group[1] == other.group[1]
        and _is_same(one.order, other.order)
    )


def _is_same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def _zeros(weight: QuantizedWeight) -> Tensor:
    if weight.zeros is not None:
        return weight.zeros
    return torch.full_like(weight.scales, 8, dtype=torch.uint8)


def _scales(weight: QuantizedWeight, rows: int) -> Tensor:
    """Scales repeated so that there is one per `rows` outputs."""
    spread = weight.scales.repeat_interleave(weight.group[0] // rows, 0)
    return spread[: -(-weight.shape[0] // rows)]
