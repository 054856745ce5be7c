"""Hyper-connections as layers; kernels/residual/hyper_connections.py has the maths and the symbols.

    x, post, comb = HyperConnection(streams)        before attention, or a feed-forward
    streams = expand_streams(streams, y, post, comb)          y is its output
    x = HyperHead(streams)                          after the last block

Streams are [T, n, D], all else [T, D].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from baton.engine.layers.linear import ExactLinear
from baton.engine.mesh.split import Split
from baton.kernels.residual.hyper_connections import collapse_streams, connect_streams, norm_streams
from baton.kernels.residual.mixture import Mixture


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperConfig:
    num_streams: int
    num_rounds: int
    """Sinkhorn rounds that scale the weights of streams, columns and rows in turn."""
    eps: float


class Mix(ExactLinear):
    """Mixing weights; small, and always in float32."""

    float32_names: ClassVar[tuple[str, ...]] = ("weight",)


class _Mixing(nn.Module):
    float32_names: ClassVar[tuple[str, ...]] = ("scale", "base")

    def __init__(
        self, width: int, config: HyperConfig, norm_eps: float, *, num_mixed: int, num_scales: int
    ) -> None:
        super().__init__()
        self.config = config
        self.norm_eps = norm_eps
        self.mix = Mix(config.num_streams * width, num_mixed, split=Split.NONE)
        self.scale = nn.Parameter(torch.empty(num_scales, device="meta"), False)
        self.base = nn.Parameter(torch.empty(num_mixed, device="meta"), False)

    def _mixed(self, streams: Tensor) -> tuple[Tensor, Mixture]:
        mixture = Mixture(
            scale=self.scale,
            base=self.base,
            num_rounds=self.config.num_rounds,
            eps=self.config.eps,
        )
        return self.mix(norm_streams(streams, self.norm_eps)), mixture


class HyperConnection(_Mixing):
    """The mix around attention or a feed-forward."""

    def __init__(self, width: int, config: HyperConfig, norm_eps: float) -> None:
        n = config.num_streams
        super().__init__(width, config, norm_eps, num_mixed=2 * n + n * n, num_scales=3)

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return connect_streams(streams, *self._mixed(streams))


class HyperHead(_Mixing):
    """Merges the streams after the last block."""

    def __init__(self, width: int, config: HyperConfig, norm_eps: float) -> None:
        super().__init__(width, config, norm_eps, num_mixed=config.num_streams, num_scales=1)

    def forward(self, streams: Tensor) -> Tensor:
        return collapse_streams(streams, *self._mixed(streams))
