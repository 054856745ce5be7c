"""Multiplies each head by a matrix of its own:   y[t, n] = W[n] x[t, n]

    x [T, N, I], W [N, O, I], y [T, N, O]

On a CPU the matrices are packed in panels (kernels/products/packed_weight.py), and results are
batch-invariant. On a GPU torch multiplies, or head_linear_gpu.py if results must be batch-invariant
there, too. x may be a view: only its last dimension must be contiguous, and a stride of 0 repeats
one row for all heads.
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
        """The panels of some of the heads, without a copy."""
        return PackedHeads(self.panels[first:stop], self.num_rows)


@dataclass(frozen=True, slots=True, eq=False)
class BatchInvariantHeads:
    """Batch-invariant matrices on a GPU: see batch_invariant_weight.py."""

    whole: Tensor  # [N, O, I]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, O, I)"""
        num_heads, num_rows, width = self.whole.shape
        return num_heads, num_rows, width

    @property
    def nbytes(self) -> int:
        return self.whole.nbytes

    def heads(self, first: int, stop: int) -> BatchInvariantHeads:
        return BatchInvariantHeads(self.whole[first:stop])

    def multiply(self, x: Tensor) -> Tensor:
        from baton.kernels.products import head_linear_gpu as gpu  # Triton, which CPUs do without

        return gpu.head_linear(x, self.whole)


HeadWeight: TypeAlias = Tensor | PackedHeads | BatchInvariantHeads
"""A plain tensor has shape [N, O, I]."""


def pack_heads(weight: Tensor, *, is_batch_invariant: bool = False) -> HeadWeight:
    """Prepares W [N, O, I] for its device: unchanged, or as a packed copy. `is_batch_invariant`:
    results must be batch-invariant, which those of packed matrices always are."""
    if runs(weight) and weight.shape[2] % DEPTHS[weight.dtype] == 0:
        return PackedHeads(cpu.pack(weight), weight.shape[1])
    return BatchInvariantHeads(weight) if is_batch_invariant else weight


def some_heads(weight: HeadWeight, first: int, stop: int) -> HeadWeight:
    return weight[first:stop] if isinstance(weight, Tensor) else weight.heads(first, stop)


def head_linear(x: Tensor, weight: HeadWeight) -> Tensor:
    """x [T, N, I] -> [T, N, O], in the dtype of x."""
    heads, _, width = weight.shape
    if x.shape[1:] != (heads, width):
        raise ValueError(f"shapes do not fit: {x.shape=} {weight.shape=}")
    if isinstance(weight, Tensor):
        return reference(x, weight)
    if isinstance(weight, BatchInvariantHeads):
        return weight.multiply(x)
    return cpu.head_linear(x, weight.panels, weight.num_rows)


def reference(x: Tensor, weight: Tensor) -> Tensor:
    by_head = torch.matmul(x.transpose(0, 1), weight.transpose(1, 2))  # [N, T, O]
    return by_head.transpose(0, 1).contiguous()
