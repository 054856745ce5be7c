"""Feed-forward layers: gated (SwiGLU, GeGLU; Shazeer 2020) and plain.

gated    down(act(gate(x)) * up(x))            plain    down(act(up(x)))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from baton.engine.layers.linear import GatedLinear, Linear
from baton.engine.mesh.split import Split
from baton.kernels.elementwise.gelu import gelu, gelu_tanh
from baton.kernels.elementwise.relu import relu
from baton.kernels.experts.moe import Gating

PLAIN: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": relu,
}
"""Activations; three names of GELU, which transformers computes in three ways."""


class GatedFeedForward(nn.Module):
    def __init__(
        self, width: int, hidden_width: int, activation: str, *, has_bias: bool = False
    ) -> None:
        super().__init__()
        self.gate_up = GatedLinear(width, hidden_width, activation, has_bias=has_bias)
        self.down = Linear(hidden_width, width, has_bias=has_bias, split=Split.INPUTS)

    def forward(self, x: Tensor) -> Tensor:
        """[T, width] -> [T, width]"""
        out: Tensor = self.down(self.gate_up(x))
        return out


class LimitedFeedForward(nn.Module):
    """A feed-forward with an expert's gating, such as one with a limit."""

    def __init__(self, width: int, hidden_width: int, gating: Gating) -> None:
        super().__init__()
        self.gating = gating
        self.gate_up = Linear(width, hidden_width, hidden_width)
        self.down = Linear(hidden_width, width, split=Split.INPUTS)

    def forward(self, x: Tensor) -> Tensor:
        """[T, width] -> [T, width]"""
        out: Tensor = self.down(self.gating(self.gate_up(x)))
        return out


class FeedForward(nn.Module):
    def __init__(
        self, width: int, hidden_width: int, activation: str, *, has_bias: bool = False
    ) -> None:
        super().__init__()
        self.up = Linear(width, hidden_width, has_bias=has_bias)
        self.down = Linear(hidden_width, width, has_bias=has_bias, split=Split.INPUTS)
        self.activation = PLAIN[activation]

    def forward(self, x: Tensor) -> Tensor:
        """[T, width] -> [T, width]"""
        out: Tensor = self.down(self.activation(self.up(x)))
        return out
