"""The SwiGLU feed-forward layer (Shazeer 2020)."""

from __future__ import annotations

from torch import Tensor, nn

from baton.engine.layers.linear import Linear
from baton.kernels.silu_mul import silu_mul


class SwiGlu(nn.Module):
    def __init__(self, width: int, hidden_width: int) -> None:
        super().__init__()
        self.gate_up = Linear(width, hidden_width, hidden_width)
        self.down = Linear(hidden_width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[T, width] -> [T, width]"""
        out: Tensor = self.down(silu_mul(self.gate_up(x)))
        return out
