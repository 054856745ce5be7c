"""Token ids, or positions, to vectors; of a table whose rows may be spread over ranks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from baton.engine.mesh.ranks import ALONE, Ranks
from baton.kernels.products.embedding import embedding
from baton.kernels.products.weight import Weight


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
        self.size = size
        """Rows that this rank has."""
        self.ranks: Ranks = ALONE
        """Among which the table is split."""
        self.weight = nn.Parameter(torch.empty(size, width, device="meta"), False)

    def forward(self, ids: Tensor) -> Tensor:
        """[T] -> [T, width]"""
        if self.ranks.size == 1:
            return embedding(ids, self.weight, self.scale)
        rows = ids - self.ranks.rank * self.size
        is_here = (rows >= 0) & (rows < self.size)
        found = embedding(rows.where(is_here, 0), self.weight, self.scale)
        return self.ranks.all_reduce_(found * is_here.unsqueeze(1))
