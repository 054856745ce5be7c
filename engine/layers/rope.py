"""The angles of rotary positions, plain and scaled.

Pair i of a head of width H turns by  position * f[i],  f[i] = theta^(-2i / H)  radians. Scalings
change f, so that positions beyond those of the training stay within what the model has seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """All positions are divided by `factor` (Chen et al. 2023)."""

    factor: float

    def apply(self, frequencies: Tensor) -> Tensor:
        return frequencies / self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Slow frequencies are divided by `factor`, fast ones kept, those between interpolated.

    A frequency is slow if it turns fewer than `low_freq_factor` times over the original context,
    fast if more than `high_freq_factor` times.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def apply(self, frequencies: Tensor) -> Tensor:
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        kept = ((turns - self.low_freq_factor) / span).clamp(0, 1)
        return (1 - kept) * frequencies / self.factor + kept * frequencies


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """How a model turns its heads; `head_dim` is even."""

    head_dim: int
    theta: float
    scaling: LinearScaling | Llama3Scaling | None = None

    def frequencies(self) -> Tensor:
        """[H/2] float32 radians a position."""
        exponents = torch.arange(0, self.head_dim, 2).float() / self.head_dim
        frequencies = 1.0 / self.theta**exponents
        return frequencies if self.scaling is None else self.scaling.apply(frequencies)
