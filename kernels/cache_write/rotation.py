"""Norms and rotations of heads before they are cached."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

Rotation = tuple[Tensor, Tensor]
"""cos and sin of the tokens' angles, float32 [T, R/2] each."""


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMS norms over each head; weights [H]."""

    q_weight: Tensor
    k_weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class LatentNorm:
    weight: Tensor  # [L]
    eps: float
