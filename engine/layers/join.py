"""One product over the concatenation of two inputs:   y = W (a, b) = A a + B b

Two products avoid the concatenation itself.
"""

from __future__ import annotations

from torch import Tensor, nn

from baton.engine.layers.linear import Linear
from baton.engine.mesh.split import Split
from baton.kernels.elementwise.add import add


class Join(nn.Module):
    def __init__(self, width: int, *rows: int, has_bias: bool = False) -> None:
        """`width` is that of each input; `rows` are the outputs of matrices that are stacked."""
        super().__init__()
        self.first = Linear(width, *rows, split=Split.NONE)
        self.second = Linear(width, *rows, has_bias=has_bias, split=Split.NONE)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        """[T, width] each -> [T, sum(rows)]"""
        return add(self.first(pair[0]), self.second(pair[1]))
