"""Packs quantized weights for the CPU operators: int8 with a scale per output, int4 in groups."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.experts import packed_quantized_experts as packed_quantized_experts
from baton.kernels.experts.packed_quantized_experts import PackedQuantizedExperts
from baton.kernels.products import int4_weight, int8_weight
from baton.kernels.products.packed_quantized_weight import PackedQuantizedWeight
from baton.kernels.products.quantized_weight import QuantizedWeight, whole_of


def is_for_cpu(quantized: QuantizedWeight) -> bool:
    """Whether the CPU operators support this weight: symmetric, without reordered inputs, in a
    format and dtype that they are compiled for."""
    if not operators.runs(torch.empty(0, dtype=quantized.dtype)):
        return False
    if quantized.zeros is not None or quantized.order is not None:
        return False
    is_int4 = quantized.items.dtype is torch.uint8 and quantized.scales.dtype is torch.float32
    return (_is_int8(quantized) and not quantized.group[1]) or (is_int4 and quantized.group[0] == 1)


def on_cpu(quantized: QuantizedWeight, *, is_gated: bool) -> PackedQuantizedWeight | None:
    """`quantized`, packed for the CPU operators; None if they do not support it."""
    if not is_for_cpu(quantized):
        return None
    if _is_int8(quantized):
        return int8_weight.of_items(
            quantized.items, _scale_of_each(quantized), quantized.dtype, is_gated=is_gated
        )
    return int4_weight.of_items(
        _whole(quantized), quantized.scales, quantized.dtype, is_gated=is_gated
    )


def experts_on_cpu(
    num_experts: int, first: QuantizedWeight, *, is_gated: bool
) -> PackedQuantizedExperts | None:
    """Memory for packed experts of the same kind as `first`; None if the CPU operators do not
    support it."""
    if not is_for_cpu(first):
        return None
    way = "int8" if _is_int8(first) else "int4"
    shape = (num_experts, *first.shape)
    return packed_quantized_experts.empty(way, shape, first.dtype, is_gated=is_gated)


def put_on_cpu(room: PackedQuantizedExperts, expert: int, quantized: QuantizedWeight) -> None:
    """Pack one expert into `room`. Raises ValueError if it is of another kind than the others."""
    bits = 8 if _is_int8(quantized) else 4
    if room.bits != bits or room.shape[1:] != quantized.shape:
        raise ValueError(
            f"{bits} bits of shape {quantized.shape}, but the other experts of this layer have "
            f"{room.bits} bits of shape {room.shape[1:]}"
        )
    if room.scales is not None:
        packed, scales = int8_weight.panels_of_items(
            quantized.items, _scale_of_each(quantized), room.is_gated
        )
        room.scales[expert].copy_(scales)
    else:
        packed = int4_weight.panels_of_items(_whole(quantized), quantized.scales, room.is_gated)
    room.packed[expert].copy_(packed)


def _is_int8(quantized: QuantizedWeight) -> bool:
    return quantized.items.dtype is torch.int8


def _scale_of_each(quantized: QuantizedWeight) -> Tensor:
    """The scale of each output, [N]."""
    return quantized.scales.expand(-1, quantized.group[0]).flatten()[: quantized.shape[0]]


def _whole(quantized: QuantizedWeight) -> Tensor:
    """The unpacked 4-bit numbers, uint8 [N, K]."""
    return whole_of(quantized.items, quantized.group[1]).flatten(1)
