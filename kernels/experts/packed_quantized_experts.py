"""The matrices of all experts of a layer quantized to 8 or 4 bits: W [E, N, K].

Each is packed like a single matrix (kernels/products/packed_quantized_weight.py); they are
contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.cpu import huge_pages, operators
from baton.kernels.products import int4_weight, int8_weight
from baton.kernels.products import quantized_linear_cpu as quantized_linear
from baton.kernels.products.packed_quantized_weight import PANEL, PackedQuantizedWeight, num_panels

BITS = {"int8": 8, "int4": 4}
"""Bits of an item, by the name of the quantization in the configuration."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedQuantizedExperts:
    bits: int
    shape: tuple[int, int, int]
    dtype: torch.dtype
    """The dtype of the x that they multiply."""
    is_gated: bool
    packed: Tensor
    """[E, panels, ..]"""
    scales: Tensor | None
    """float32 [E, panels, 32]; None if scales are among the bytes."""

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def put(self, expert: int, weight: Tensor) -> None:
        """Quantize W[expert], [N, K]."""
        if tuple(weight.shape) != self.shape[1:] or weight.dtype is not self.dtype:
            raise ValueError(f"no expert of {self.shape} {self.dtype}: {weight.shape=}")
        kept = (self.packed,) if self.scales is None else (self.packed, self.scales)
        places = tuple(tensor[expert] for tensor in kept)
        if operators.runs(weight):
            panels, *scales = places
            quantized_linear.pack(
                self.bits, weight, panels, scales[0] if scales else None, is_gated=self.is_gated
            )
            return
        rounded: tuple[Tensor, ...]
        if self.bits == 8:
            rounded = int8_weight.reference(weight, self.is_gated)
        else:
            rounded = (int4_weight.reference(weight, self.is_gated),)
        for place, numbers in zip(places, rounded, strict=True):
            place.copy_(numbers)

    def one(self, expert: int) -> PackedQuantizedWeight:
        """One expert, as a view."""
        make = int8_weight.Int8Weight if self.bits == 8 else int4_weight.Int4Weight
        return make(
            shape=self.shape[1:],
            dtype=self.dtype,
            is_gated=self.is_gated,
            packed=self.packed[expert],
            scales=None if self.scales is None else self.scales[expert],
        )

    def to_dense(self, expert: int) -> Tensor:
        return self.one(expert).to_dense()


def empty(
    way: str, shape: Sequence[int], dtype: torch.dtype, *, is_gated: bool
) -> PackedQuantizedExperts:
    """Memory for experts [E, N, K], to be filled with `put`."""
    num_experts, num_rows, width = shape
    count, padded = num_panels(num_rows, is_gated), quantized_linear.padded(width)
    bits = BITS[way]
    of_panel: tuple[int, ...] = (padded // 4, PANEL, 4)
    if bits == 4:
        of_panel = (padded // quantized_linear.GROUP, int4_weight.GROUP_BYTES)
    return PackedQuantizedExperts(
        bits=bits,
        shape=(num_experts, num_rows, width),
        dtype=dtype,
        is_gated=is_gated,
        packed=huge_pages.empty((num_experts, count, *of_panel), torch.uint8),
        scales=torch.empty(num_experts, count, PANEL) if bits == 8 else None,
    )
