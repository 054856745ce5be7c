"""Products of each head with a matrix of its own:   y[t, n] = W[n] x[t, n]

    x [T, N, I], W [N, O, I], y [T, N, O]

On a CPU a head's matrix lies in panels, as others do (kernels/products/packed_weight.py), and a row
of y has the same bits whatever rows are computed beside it; on a GPU torch multiplies, or, where
that is wanted there, too, head_linear_gpu.py. x may be a view: only its last
dimension must be contiguous, and one row may stand for all heads (a stride of 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from baton.kernels.cpu.operators import runs
from baton.kernels.products import head_linear_cpu as cpu
from baton.kernels.products.linear_cpu import DEPTHS


@dataclass(frozen=True, slots=True, eq=False)
class PackedHeads:
    panels: Tensor  # [N, panels, I / depth, 32, depth]
    num_rows: int
    """O"""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, O, I)"""
        return len(self.panels), self.num_rows, self.panels.shape[2] * self.panels.shape[4]

    @property
    def nbytes(self) -> int:
        return self.panels.nbytes

    def heads(self, first: int, stop: int) -> PackedHeads:
        """The panels of some of the heads; copies nothing."""
        return PackedHeads(self.panels[first:stop], self.num_rows)


@dataclass(frozen=True, slots=True, eq=False)
class FixedHeads:
    """Matrices on a GPU that multiply a row the same beside any others: see fixed_weight.py."""

    whole: Tensor  # [N, O, I]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, O, I)"""
        num_heads, num_rows, width = self.whole.shape
        return num_heads, num_rows, width

    @property
    def nbytes(self) -> int:
        return self.whole.nbytes

    def heads(self, first: int, stop: int) -> FixedHeads:
        return FixedHeads(self.whole[first:stop])

    def multiply(self, x: Tensor) -> Tensor:
        from baton.kernels.products import head_linear_gpu as gpu  # Triton, which CPUs do without

        return gpu.head_linear(x, self.whole)


HeadWeight: TypeAlias = Tensor | PackedHeads | FixedHeads
"""A tensor is [N, O, I]."""


def pack_heads(weight: Tensor, *, is_fixed: bool = False) -> HeadWeight:
    """W [N, O, I] as its device multiplies it best: as it is, or a packed copy. `is_fixed`: a row
    is the same beside any others, which packed ones give anyway."""
    if runs(weight) and weight.shape[2] % DEPTHS[weight.dtype] == 0:
        return PackedHeads(cpu.pack(weight), weight.shape[1])
    return FixedHeads(weight) if is_fixed else weight


def some_heads(weight: HeadWeight, first: int, stop: int) -> HeadWeight:
    return weight[first:stop] if isinstance(weight, Tensor) else weight.heads(first, stop)


def head_linear(x: Tensor, weight: HeadWeight) -> Tensor:
    """x [T, N, I] -> [T, N, O], in the dtype of x."""
    heads, _, width = weight.shape
    if x.shape[1:] != (heads, width):
        raise ValueError(f"shapes do not fit: {x.shape=} {weight.shape=}")
    if isinstance(weight, Tensor):
        return reference(x, weight)
    if isinstance(weight, FixedHeads):
        return weight.multiply(x)
    return cpu.head_linear(x, weight.panels, weight.num_rows)


def reference(x: Tensor, weight: Tensor) -> Tensor:
    by_head = torch.matmul(x.transpose(0, 1), weight.transpose(1, 2))  # [N, T, O]
    return by_head.transpose(0, 1).contiguous()
