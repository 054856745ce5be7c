"""Matrix products, with a bias or without."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Linear(nn.Module):
    """One or several matrices over the same input, stacked so that one product does them all.

    Like all parameters of ours the weight has no memory until a checkpoint gives it some.
    """

    bias: nn.Parameter | None

    def __init__(self, width: int, *rows: int, has_bias: bool = False) -> None:
        super().__init__()
        self.rows = rows
        """Outputs of each stacked matrix."""
        self.weight = nn.Parameter(torch.empty(sum(rows), width, device="meta"), False)
        self.bias = nn.Parameter(torch.empty(sum(rows), device="meta"), False) if has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[T, width] -> [T, sum(rows)]"""
        return functional.linear(x, self.weight, self.bias)
