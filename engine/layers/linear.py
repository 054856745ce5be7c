"""Linear layers, of one rank's share of a matrix, with or without bias."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from baton.engine.layers.adapted import AdapterUpdates
from baton.engine.mesh.ranks import ALONE, Ranks
from baton.engine.mesh.split import Split
from baton.kernels.products.linear import GATES, gated_linear, linear
from baton.kernels.products.weight import Weight


class Linear(nn.Module):
    """One or several matrices over the same input, stacked so that one product does them all.

    The weight is a parameter without memory until the checkpoint is loaded; then it is replaced by
    the form that the device multiplies fastest.
    """

    is_exact: ClassVar[bool] = False
    """Whether it is never quantised."""
    weight: Weight
    bias: nn.Parameter | None

    def __init__(
        self, width: int, *rows: int, has_bias: bool = False, split: Split = Split.OUTPUTS
    ) -> None:
        super().__init__()
        self.rows = rows
        """Outputs of each stacked matrix."""
        self.split = split
        self.ranks: Ranks = ALONE
        """The ranks over which it is split."""
        self.is_gated = False
        """Whether its weight is kept for a product that gates, too."""
        self.adapted: AdapterUpdates | None = None
        """What adapters add to its outputs; None if none of them changes it."""
        self.gives_summands = False
        """Whether it is split by inputs, and its user sums the outputs over the ranks."""
        self.weight = nn.Parameter(torch.empty(sum(rows), width, device="meta"), False)
        self.bias = nn.Parameter(torch.empty(sum(rows), device="meta"), False) if has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[T, width] -> [T, sum(rows)]"""
        if self.split is not Split.INPUTS or self.ranks.size == 1:
            return self._product(x, self.bias)
        summand = self._product(x, self.bias if self.ranks.rank == 0 else None)
        return self.ranks.all_reduce_(summand)

    def _product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        y = linear(x, self.weight, bias)
        return y if self.adapted is None else self.adapted.add_(y, x)


class ExactLinear(Linear):
    """A small linear layer that is never quantised, since its errors would be large."""

    is_exact = True


class GatedLinear(Linear):
    """Two stacked matrices, gate and up: act(gate x) * up x."""

    def __init__(self, width: int, rows: int, activation: str, *, has_bias: bool = False) -> None:
        super().__init__(width, rows, rows, has_bias=has_bias)
        self.activation = activation
        self.is_gated = True

    def forward(self, x: Tensor) -> Tensor:
        """[T, width] -> [T, rows]"""
        if self.adapted is None:
            return gated_linear(x, self.weight, self.activation, self.bias)
        return GATES[self.activation](self._product(x, self.bias))
