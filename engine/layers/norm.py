"""RMS norm (Zhang and Sennrich 2019) as a part of a model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from baton.kernels.rms_norm import add_rms_norm, rms_norm


class RmsNorm(nn.Module):
    """Over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width, device="meta"), False)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class AddRmsNorm(RmsNorm):
    """Adds the residual stream first and hands the sum on: where a pre-norm block begins."""

    def forward(  # type: ignore[override]  # a norm with one more input and output
        self, x: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return (normalised, new residual); None is the residual before the first block."""
        if residual is None:
            return rms_norm(x, self.weight, self.eps), x
        return add_rms_norm(x, residual, self.weight, self.eps)
