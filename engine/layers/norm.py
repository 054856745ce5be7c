"""Norms over the last dimension, as parts of a model.

    RMS norm (Zhang and Sennrich 2019)    RmsNorm      GemmaRmsNorm, whose weight is stored less 1
                                                       UnitNorm, which has none
    layer norm (Ba et al. 2016)           LayerNorm

Those named Add.. begin a block: forward(x, residual) -> (normalised sum, sum). They add the
previous block's output to the residual stream and normalise the sum in one operation; before the
first block the residual is None.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from baton.kernels.residual.layer_norm import add_layer_norm, layer_norm
from baton.kernels.residual.rms_norm import add_rms_norm, rms_norm


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width, device="meta"), False)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.scale(), self.eps)

    def scale(self) -> Tensor:
        """The factor of the normalised values."""
        return self.weight


class UnitNorm(RmsNorm):
    """RMS norm without a weight."""

    ones: Tensor

    def __init__(self, width: int, eps: float) -> None:
        super().__init__(width, eps)
        del self.weight
        self.register_buffer("ones", torch.ones(width), persistent=False)

    def scale(self) -> Tensor:
        return self.ones


class AddRmsNorm(RmsNorm):
    def forward(  # type: ignore[override]  # a norm with one more input and output
        self, x: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if residual is None:
            return rms_norm(x, self.weight, self.eps), x
        return add_rms_norm(x, residual, self.weight, self.eps)


class GemmaRmsNorm(RmsNorm):
    def scale(self) -> Tensor:
        """1 + weight in float32: rounded to a narrower dtype, it would lose most of the weight."""
        return 1.0 + self.weight.float()


class AddGemmaRmsNorm(GemmaRmsNorm):
    def forward(  # type: ignore[override]
        self, x: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if residual is None:
            return rms_norm(x, self.scale(), self.eps), x
        return add_rms_norm(x, residual, self.scale(), self.eps)


class LayerNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width, device="meta"), False)
        self.bias = nn.Parameter(torch.empty(width, device="meta"), False)

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)


class AddLayerNorm(LayerNorm):
    def forward(  # type: ignore[override]
        self, x: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if residual is None:
            return layer_norm(x, self.weight, self.bias, self.eps), x
        return add_layer_norm(x, residual, self.weight, self.bias, self.eps)
