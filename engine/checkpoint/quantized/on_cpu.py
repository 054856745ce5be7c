"""Narrow weights as the operators of a CPU multiply them: int8 by output, int4 by groups of 32."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.experts import quantized_experts
from baton.kernels.experts.quantized_experts import QuantizedExperts
from baton.kernels.products import int4_weight, int8_weight
from baton.kernels.products.narrow_weight import NarrowWeight, whole_of
from baton.kernels.products.quantized_weight import QuantizedWeight


def is_for_cpu(narrow: NarrowWeight) -> bool:
    """Symmetric, its inputs as they come, and compiled."""
    if not operators.runs(torch.empty(0, dtype=narrow.dtype)):
        return False
    if narrow.zeros is not None or narrow.order is not None:
        return False
    is_int4 = narrow.items.dtype is torch.uint8 and narrow.scales.dtype is torch.float32
    return (_is_int8(narrow) and not narrow.group[1]) or (is_int4 and narrow.group[0] == 1)


def on_cpu(narrow: NarrowWeight, *, is_gated: bool) -> QuantizedWeight | None:
    """The same weight for operators; None if there are none for it."""
    if not is_for_cpu(narrow):
        return None
    if _is_int8(narrow):
        return int8_weight.of_items(
            narrow.items, _scale_of_each(narrow), narrow.dtype, is_gated=is_gated
        )
    return int4_weight.of_items(_whole(narrow), narrow.scales, narrow.dtype, is_gated=is_gated)


def experts_on_cpu(
    num_experts: int, first: NarrowWeight, *, is_gated: bool
) -> QuantizedExperts | None:
    """Room for experts like the first, for operators; None if there are none for it."""
    if not is_for_cpu(first):
        return None
    way = "int8" if _is_int8(first) else "int4"
    shape = (num_experts, *first.shape)
    return quantized_experts.empty(way, shape, first.dtype, is_gated=is_gated)


def put_on_cpu(room: QuantizedExperts, expert: int, narrow: NarrowWeight) -> None:
    """Raises ValueError if it is of another kind than there is room for."""
    bits = 8 if _is_int8(narrow) else 4
    if room.bits != bits or room.shape[1:] != narrow.shape:
        raise ValueError(f"{bits} bits {narrow.shape} among {room.bits} bits {room.shape[1:]}")
    if room.scales is not None:
        packed, scales = int8_weight.panels_of_items(
            narrow.items, _scale_of_each(narrow), room.is_gated
        )
        room.scales[expert].copy_(scales)
    else:
        packed = int4_weight.panels_of_items(_whole(narrow), narrow.scales, room.is_gated)
    room.packed[expert].copy_(packed)


def _is_int8(narrow: NarrowWeight) -> bool:
    return narrow.items.dtype is torch.int8


def _scale_of_each(narrow: NarrowWeight) -> Tensor:
    """[N]"""
    return narrow.scales.expand(-1, narrow.group[0]).flatten()[: narrow.shape[0]]


def _whole(narrow: NarrowWeight) -> Tensor:
    """uint8 [N, K]"""
    return whole_of(narrow.items, narrow.group[1]).flatten(1)
