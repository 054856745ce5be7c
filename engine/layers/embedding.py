"""Token ids to vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Embedding(nn.Module):
    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, width, device="meta"), False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[T] -> [T, width]"""
        return functional.embedding(tokens, self.weight)

    def logits(self, x: Tensor) -> Tensor:
        """[S, width] -> [S, vocab_size], for models whose head is tied to the embedding."""
        return functional.linear(x, self.weight)
