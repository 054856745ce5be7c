"""A weight matrix in the order in which the CPU's products read it, the same for any number of
rows.

    W [N, K]            panel p holds rows 32p .. 32p + 31, one step along K after the other

    float32   [N / 32] [K]     [32]        a step is one item of each row
    bfloat16  [N / 32] [K / 2] [32] [2]    or two, which one instruction multiplies and adds

A step is 128 bytes. A panel is read from end to end, and so is the matrix. The last panel is padded
with zeros. If W is gated (the gate matrix G stacked on the up matrix U, [2F, K]), a panel holds 16
rows of G and the same 16 rows of U, so that act(G x) * (U x) can be computed panel by panel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.cpu.operators import runs
from baton.kernels.products import embedding_cpu as embedding
from baton.kernels.products import linear_cpu as linear


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A `PreparedWeight`, see kernels/products/weight.py."""

    packed: Tensor
    num_rows: int
    is_gated: bool

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_rows, self.packed.shape[1] * self.packed.shape[3]

    @property
    def dtype(self) -> torch.dtype:
        return self.packed.dtype

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        self._check(is_gated=False)
        return linear.linear(x, self.packed, self.num_rows, bias)

    def gated_linear(self, x: Tensor, activation: str, bias: Tensor | None) -> Tensor:
        self._check(is_gated=True)
        return linear.gated_linear(x, self.packed, self.num_rows, activation, bias)

    def logits(self, x: Tensor) -> Tensor:
        self._check(is_gated=False)
        return linear.logits(x, self.packed, self.num_rows)

    def embedding(self, ids: Tensor, scale: float | None) -> Tensor:
        self._check(is_gated=False)
        return embedding.packed_embedding(ids, self.packed, scale)

    def to_dense(self) -> Tensor:
        return linear.unpack(self.packed, self.num_rows, self.is_gated)

    def _check(self, *, is_gated: bool) -> None:
        if self.is_gated is not is_gated:
            raise ValueError("packed with the gates among the rows, or not: the other is wanted")


def can_pack(weight: Tensor) -> bool:
    """Whether a weight can be packed: there are compiled operators, and it is float32, or bfloat16
    with an even width."""
    return weight.dim() == 2 and runs(weight) and weight.shape[1] % linear.DEPTHS[weight.dtype] == 0


def pack(weight: Tensor, *, is_gated: bool = False) -> PackedWeight:
    """A packed copy of W [N, K]."""
    return PackedWeight(linear.pack(weight, is_gated), len(weight), is_gated)
