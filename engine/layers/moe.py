"""Mixture of experts as a feed-forward (Shazeer et al. 2017), with or without a shared one.

    router -> experts [T, C], shares [T, C], and where the pairs of each expert end
    out = sum over the choices of  share * expert(x)   +   shared(x) * (1 or sigmoid(gate(x)))

What a pass asks of each expert is `Routed.stops`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from baton.engine.layers.feed_forward import GatedFeedForward
from baton.engine.layers.linear import ExactLinear
from baton.engine.layers.router import Router
from baton.engine.parallel.ranks import ALONE, Ranks
from baton.kernels.moe import ExpertWeight, ExpertWeights, Gating, Shared, moe
from baton.kernels.routing import Routed

GATE_UP, DOWN, DOWN_BIAS = "gate_up", "down", "down_bias"


class Experts(nn.Module):
    """All experts of a layer: E gated feed-forwards of one shape."""

    gate_up: ExpertWeight
    down: ExpertWeight
    gate_up_bias: nn.Parameter | None
    down_bias: nn.Parameter | None

    def __init__(
        self,
        num_experts: int,
        width: int,
        hidden_width: int,
        gating: Gating,
        *,
        has_bias: bool = False,
        is_input_scaled: bool = False,
    ) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.hidden_width = hidden_width
        self.gating = gating
        self.ranks: Ranks = ALONE
        """Each has a part of every expert."""
        self.is_input_scaled = is_input_scaled
        self.gate_up = _nothing_yet(num_experts, 2 * hidden_width, width)
        self.down = _nothing_yet(num_experts, width, hidden_width)
        self.gate_up_bias = _nothing_yet(num_experts, 2 * hidden_width) if has_bias else None
        self.down_bias = _nothing_yet(num_experts, width) if has_bias else None

    def forward(self, x: Tensor, routed: Routed, shared: Shared | None = None) -> Tensor:
        """x [T, width] -> [T, width]"""
        weights = ExpertWeights(
            gate_up=self.gate_up,
            down=self.down,
            gate_up_bias=self.gate_up_bias,
            down_bias=self.down_bias,
            gating=self.gating,
            is_input_scaled=self.is_input_scaled,
        )
        if self.ranks.size == 1:
            return moe(x, weights, routed, shared)
        summand = moe(x, weights, routed, shared if self.ranks.rank == 0 else None)
        return self.ranks.all_reduce_(summand)


def _nothing_yet(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, device="meta"), False)


class MoeFeedForward(nn.Module):
    """`shared` is what all tokens go through, `shared_gate` how much of it they get."""

    def __init__(
        self,
        *,
        router: Router,
        experts: Experts,
        shared: GatedFeedForward | None = None,
        shared_gate: ExactLinear | None = None,
    ) -> None:
        super().__init__()
        self.router = router
        self.experts = experts
        self.shared = shared
        self.shared_gate = shared_gate

    def forward(self, x: Tensor) -> Tensor:
        """[T, width] -> [T, width]"""
        routed = self.router.choose(self.router(x))
        out: Tensor = self.experts(x, routed, self._shared(x))
        return out

    def _shared(self, x: Tensor) -> Shared | None:
        if self.shared is None:
            return None
        return Shared(self.shared(x), None if self.shared_gate is None else self.shared_gate(x))
