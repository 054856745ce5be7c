"""What a matrix of weights W [N, K] is prepared as: decided once, when it is loaded.

    Tensor            as it came from the checkpoint; torch or Triton multiplies
    PreparedWeight    packed (in panels, as CPUs read them), quantised, or both; or fixed, on a GPU
                      whose sums are to have one order; it knows how to multiply

Whoever uses a weight passes it on to kernels/products/linear.py and kernels/products/embedding.py
as it is.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import torch
from torch import Tensor


class PreparedWeight(Protocol):
    @property
    def shape(self) -> tuple[int, int]:
        """(N, K), as the checkpoint has it."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the x that it multiplies."""

    @property
    def nbytes(self) -> int:
        """All that one product with it reads."""

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, K] -> x W^T + b [T, N], in the dtype of x."""

    def gated_linear(self, x: Tensor, activation: str, bias: Tensor | None) -> Tensor:
        """x [T, K] -> act(x G^T + b) * (x U^T + c) [T, N / 2], the rows of W being G, then U.

        Only of a weight that was made for it.
        """

    def logits(self, x: Tensor) -> Tensor:
        """x [S, K] -> x W^T [S, N] in float32."""

    def embedding(self, ids: Tensor, scale: float | None) -> Tensor:
        """ids [T] -> W[ids] * scale [T, K]"""

    def to_dense(self) -> Tensor:
        """W [N, K]: what its numbers stand for."""


Weight: TypeAlias = Tensor | PreparedWeight
