"""The matrices of all experts of a layer, each packed for the CPU's products.

    W [E, N, K]   one tensor of E packed matrices; see kernels/products/packed_weight.py

Experts are added one by one, so that the experts of a layer are never in memory twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baton.kernels.cpu import huge_pages
from baton.kernels.cpu.operators import runs
from baton.kernels.products import linear_cpu as linear


@dataclass(frozen=True, slots=True, eq=False)
class PackedExperts:
    bits: ClassVar[int] = 0
    scales: ClassVar[None] = None

    packed: Tensor
    """[E, panels, K / depth, 32, depth]"""
    num_rows: int
    is_gated: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        num_experts, _, num_steps, _, depth = self.packed.shape
        return num_experts, self.num_rows, num_steps * depth

    @property
    def dtype(self) -> torch.dtype:
        return self.packed.dtype

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes

    def put(self, expert: int, weight: Tensor) -> None:
        """Pack a copy of W[expert], [N, K]."""
        if tuple(weight.shape) != self.shape[1:] or weight.dtype is not self.dtype:
            raise ValueError(f"no expert of {self.shape} {self.dtype}: {weight.shape=}")
        linear.pack_into(self.packed[expert], weight, self.is_gated)

    def to_dense(self, expert: int) -> Tensor:
        return linear.unpack(self.packed[expert], self.num_rows, self.is_gated)


def can_pack(shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether experts of that shape can be packed, by the rule for a single weight."""
    return runs(torch.empty(0, dtype=dtype)) and shape[-1] % linear.DEPTHS[dtype] == 0


def empty(shape: Sequence[int], dtype: torch.dtype, *, is_gated: bool) -> PackedExperts:
    """Memory for experts [E, N, K], to be filled with `put`."""
    num_experts, num_rows, width = shape
    one = linear.packed_shape((num_rows, width), dtype, is_gated)
    return PackedExperts(huge_pages.empty((num_experts, *one), dtype), num_rows, is_gated)
