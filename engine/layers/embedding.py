"""Embeds token ids or positions, with a table whose rows may be split over ranks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from baton.engine.mesh.ranks import ALONE, Ranks
from baton.kernels.products.embedding import embedding
from baton.kernels.products.weight import Weight


class Embedding(nn.Module):
    """`scale`, rounded to the weight's dtype, multiplies the vectors, as in Gemma. A tied table is
    also the output head's weight, and stored like one.
    """

    weight: Weight

    def __init__(
        self, size: int, width: int, *, scale: float | None = None, is_tied: bool = False
    ) -> None:
        super().__init__()
        self.scale = scale
        self.is_tied = is_tied
        self.size = size
        """Rows on this rank."""
        self.ranks: Ranks = ALONE
        """The ranks over which the table is split."""
        self.weight = nn.Parameter(torch.empty(size, width, device="meta"), False)

    def forward(self, ids: Tensor) -> Tensor:
        """[T] -> [T, width]"""
        if self.ranks.size == 1:
            return embedding(ids, self.weight, self.scale)
        rows = ids - self.ranks.rank * self.size
        is_here = (rows >= 0) & (rows < self.size)
        found = embedding(rows.where(is_here, 0), self.weight, self.scale)
        return self.ranks.all_reduce_(found * is_here.unsqueeze(1))
