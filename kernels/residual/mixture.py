"""The settings of hyper-connections."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Mixture:
    """How mixed numbers are converted to the weights of streams."""

    scale: Tensor  # [3] float32, or [1]
    base: Tensor  # [M] float32
    num_rounds: int
    """Sinkhorn rounds; in each, rows and then columns of the weights are normalised."""
    eps: float
