"""Feed-forward layers: gated (SwiGLU, GeGLU; Shazeer 2020) and plain.

gated    down(act(gate(x)) * up(x))            plain    down(act(up(x)))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn
from torch.nn import functional

from baton.engine.layers.linear import Linear
from baton.kernels.gelu import gelu, gelu_tanh, gelu_tanh_mul
from baton.kernels.silu_mul import silu_mul

GATED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": silu_mul,
    "gelu_pytorch_tanh": gelu_tanh_mul,
}
"""Gate and product [T, 2F] -> [T, F], by the name that `config.json` has for the activation."""

PLAIN: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": functional.relu,
}
"""Elementwise; three names for one function, which transformers computes in three ways."""


class GatedFeedForward(nn.Module):
    def __init__(
        self, width: int, hidden_width: int, activation: str, *, has_bias: bool = False
    ) -> None:
        super().__init__()
        self.gate_up = Linear(width, hidden_width, hidden_width, has_bias=has_bias)
        self.down = Linear(hidden_width, width, has_bias=has_bias)
        self.gate = GATED[activation]

    def forward(self, x: Tensor) -> Tensor:
        """[T, width] -> [T, width]"""
        out: Tensor = self.down(self.gate(self.gate_up(x)))
        return out


class FeedForward(nn.Module):
    def __init__(
        self, width: int, hidden_width: int, activation: str, *, has_bias: bool = False
    ) -> None:
        super().__init__()
        self.up = Linear(width, hidden_width, has_bias=has_bias)
        self.down = Linear(hidden_width, width, has_bias=has_bias)
        self.activation = PLAIN[activation]

    def forward(self, x: Tensor) -> Tensor:
        """[T, width] -> [T, width]"""
        out: Tensor = self.down(self.activation(self.up(x)))
        return out
