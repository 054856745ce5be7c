"""The forms of a weight matrix W [N, K]. The form is chosen once, when the weight is loaded.

    Tensor            as in the checkpoint; multiplied by torch or Triton
    PreparedWeight    packed in panels for CPUs, quantized, or both; or batch-invariant on a GPU.
                      It has methods for its products

Code that uses weights of any form calls kernels/products/linear.py and
kernels/products/embedding.py.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import torch
from torch import Tensor


class PreparedWeight(Protocol):
    @property
    def shape(self) -> tuple[int, int]:
        """(N, K), as in the checkpoint."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the x that it multiplies."""

    @property
    def nbytes(self) -> int:
        """Bytes that one product with the weight reads."""

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, K] -> x W^T + b [T, N], in the dtype of x."""

    def gated_linear(self, x: Tensor, activation: str, bias: Tensor | None) -> Tensor:
        """x [T, K] -> act(x G^T + b) * (x U^T + c) [T, N / 2], where W is G [N / 2, K] stacked on
        U.

        Only for weights that were prepared as gated.
        """

    def logits(self, x: Tensor) -> Tensor:
        """x [S, K] -> x W^T [S, N] in float32."""

    def embedding(self, ids: Tensor, scale: float | None) -> Tensor:
        """ids [T] -> W[ids] * scale [T, K]"""

    def to_dense(self) -> Tensor:
        """The weight as a plain tensor [N, K], dequantized."""


Weight: TypeAlias = Tensor | PreparedWeight
