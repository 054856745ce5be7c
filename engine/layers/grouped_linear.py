"""A matrix product per group of inputs and outputs.

    y[t, g] = W[g] x[t, g]          x [T, G, I], W [G, O, I]

T tokens, G groups, of each I inputs and O outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from baton.kernels.products.head_linear import HeadWeight, head_linear, pack_heads


class GroupedLinear(nn.Module):
    """A checkpoint has the matrices stacked, [G O, I]."""

    weight: nn.Parameter | HeadWeight

    def __init__(self, num_groups: int, width: int, num_rows: int) -> None:
        """`width` and `num_rows` are those of one group."""
        super().__init__()
        self.num_groups = num_groups
        rows = num_groups * num_rows
        self.weight = nn.Parameter(torch.empty(rows, width, device="meta"), False)

    def prepared(self, weight: Tensor) -> HeadWeight:
        """The loaded weight in the form for this device."""
        return pack_heads(weight.view(self.num_groups, -1, weight.shape[1]))

    def forward(self, x: Tensor) -> Tensor:
        """[T, G, I] -> [T, G, O]"""
        return head_linear(x, self.weight)
