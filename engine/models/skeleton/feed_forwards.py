"""Builds the feed-forward of a layer by its configuration."""

from __future__ import annotations

from torch import nn

from baton.engine.layers.feed_forward import GatedFeedForward
from baton.engine.layers.linear import ExactLinear
from baton.engine.layers.moe import Experts, MoeFeedForward
from baton.engine.layers.router import Router
from baton.engine.mesh.split import Split
from baton.engine.models.config.model_config import LayerConfig, ModelConfig
from baton.engine.models.config.moe import MoeConfig


def feed_forward_of(config: ModelConfig, layer: LayerConfig) -> nn.Module:
    """A gated feed-forward, or a mixture of them."""
    if layer.moe is not None:
        return _mixture(config.hidden_size, config.activation, layer.moe)
    return GatedFeedForward(
        config.hidden_size,
        config.intermediate_size,
        config.activation,
        has_bias=config.has_ffn_bias,
    )


def _mixture(width: int, activation: str, moe: MoeConfig) -> MoeFeedForward:
    return MoeFeedForward(
        router=Router(
            width,
            moe.routing,
            has_bias=moe.has_router_bias,
            has_correction=moe.has_correction,
        ),
        experts=Experts(
            moe.routing.num_experts,
            width,
            moe.expert_width,
            moe.gating,
            has_bias=moe.has_expert_bias,
            is_input_scaled=moe.is_input_scaled,
            num_slots=moe.num_slots,
        ),
        shared=GatedFeedForward(width, moe.shared_width, activation) if moe.shared_width else None,
        shared_gate=ExactLinear(width, 1, split=Split.NONE) if moe.has_shared_gate else None,
    )
