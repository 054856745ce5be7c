"""The router of an MoE layer, which chooses each token's experts."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from baton.engine.layers.linear import ExactLinear
from baton.engine.mesh.split import Split
from baton.kernels.experts.routing import Routed, Routing, route, router_logits


class Router(ExactLinear):
    """`bias` is added to the logits (GPT-OSS), `correction` to the scores for the choice
    (DeepSeek)."""

    float32_names: ClassVar[tuple[str, ...]] = ("bias", "correction")
    """Kept in float32, in which they are compared."""
    correction: nn.Parameter | None

    def __init__(
        self,
        width: int,
        routing: Routing,
        *,
        has_bias: bool = False,
        has_correction: bool = False,
    ) -> None:
        super().__init__(width, routing.num_experts, has_bias=has_bias, split=Split.NONE)
        self.routing = routing
        self.correction = None
        if has_correction:
            every = torch.empty(routing.num_experts, device="meta")
            self.correction = nn.Parameter(every, False)

    def forward(self, x: Tensor) -> Tensor:
        """[T, width] -> logits [T, E] float32, to which no bias was added yet"""
        return router_logits(x, self.weight)

    def choose(self, logits: Tensor) -> Routed:
        return route(logits, self.routing, bias=self.bias, correction=self.correction)
