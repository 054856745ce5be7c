"""Token ids, or positions, to vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Embedding(nn.Module):
    """`scale` multiplies what is looked up, rounded to the weight's dtype first, as Gemma does."""

    def __init__(self, size: int, width: int, *, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.empty(size, width, device="meta"), False)

    def forward(self, ids: Tensor) -> Tensor:
        """[T] -> [T, width]"""
        x = functional.embedding(ids, self.weight)
        return x if self.scale is None else x * torch.tensor(self.scale, dtype=x.dtype)

    def logits(self, x: Tensor) -> Tensor:
        """[S, width] -> [S, size], for models whose head is tied to the embedding."""
        return functional.linear(x, self.weight)
