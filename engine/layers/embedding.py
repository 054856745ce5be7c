"""Token ids, or positions, to vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from baton.kernels.embedding import embedding
from baton.kernels.weight import Weight


class Embedding(nn.Module):
    """`scale` multiplies what is looked up, rounded to the weight's dtype first, as Gemma does.

    The weight of a tied table is multiplied with as well, and kept as the head's would be.
    """

    weight: Weight

    def __init__(
        self, size: int, width: int, *, scale: float | None = None, is_tied: bool = False
    ) -> None:
        super().__init__()
        self.scale = scale
        self.is_tied = is_tied
        self.weight = nn.Parameter(torch.empty(size, width, device="meta"), False)

    def forward(self, ids: Tensor) -> Tensor:
        """[T] -> [T, width]"""
        return embedding(ids, self.weight, self.scale)
