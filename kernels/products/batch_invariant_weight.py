"""A batch-invariant weight matrix on a GPU: a row of the result has the same bits whatever other
rows are in the batch. Products always use Baton's own kernel with the same tiles and the same
splits of K, and never a library, whose choice of kernel depends on the number of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.products.embedding import reference
from baton.kernels.products.linear import GATES


@dataclass(frozen=True, slots=True, eq=False)
class BatchInvariantWeight:
    """A `PreparedWeight`, see kernels/products/weight.py."""

    whole: Tensor
    """W [N, K], as in the checkpoint."""

    @property
    def shape(self) -> tuple[int, int]:
        num_rows, width = self.whole.shape
        return num_rows, width

    @property
    def dtype(self) -> torch.dtype:
        return self.whole.dtype

    @property
    def nbytes(self) -> int:
        return self.whole.nbytes

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self._multiply(x, bias, x.dtype)

    def gated_linear(self, x: Tensor, activation: str, bias: Tensor | None) -> Tensor:
        return GATES[activation](self.linear(x, bias))

    def logits(self, x: Tensor) -> Tensor:
        return self._multiply(x, None, torch.float32)

    def embedding(self, ids: Tensor, scale: float | None) -> Tensor:
        return reference(ids, self.whole, scale)

    def to_dense(self) -> Tensor:
        return self.whole

    def _multiply(self, x: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        from baton.kernels.products.linear_gpu import linear_tiles  # Triton, which CPUs do without

        if x.dtype is not self.whole.dtype or x.shape[-1] != self.whole.shape[1]:
            raise ValueError(f"{x.shape=}, {x.dtype}, by {tuple(self.shape)}, {self.dtype}")
        return linear_tiles(x, self.whole, bias=bias, dtype=dtype, is_batch_invariant=True)
