"""Rotary position embeddings: angles.

Pair i of the R dimensions of a head that rotate is rotated by  position * f[i]  radians; without
scaling f[i] = theta^(-2i / R).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from baton.engine.layers.rope_scaling import Scaling, plain_frequencies
from baton.kernels.cache_write.rotation import Rotation
from baton.kernels.positions.rotary_angles import rotary_angles


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """The rotary settings of a model."""

    rotary_dim: int
    """R, even; at most the head's width."""
    theta: float
    scaling: Scaling | None = None

    def frequencies(self, served_len: int) -> Tensor:
        """[R/2] float32 radians a position, for a replica that serves up to `served_len` tokens."""
        if self.scaling is None:
            return plain_frequencies(self.rotary_dim, self.theta)
        return self.scaling.frequencies(self.rotary_dim, self.theta, served_len)

    @property
    def attention_factor(self) -> float:
        return 1.0 if self.scaling is None else self.scaling.attention_factor


class RotaryAngles(nn.Module):
    frequencies: Tensor  # [R/2]

    def __init__(self, rope: Rope, served_len: int) -> None:
        super().__init__()
        self.attention_factor = rope.attention_factor
        self.register_buffer("frequencies", rope.frequencies(served_len), persistent=False)

    def forward(self, positions: Tensor) -> Rotation:
        """[T] -> cos and sin, [T, R/2] each."""
        return rotary_angles(positions, self.frequencies, self.attention_factor)
