"""Counts the parameters that are active for one token: all except those of experts not chosen."""

from __future__ import annotations

from torch import nn

from baton.engine.layers.moe import MoeFeedForward


def active_parameters(model: nn.Module) -> int:
    """The number of active parameters of `model`, which needs no weights yet. Embeddings are
    counted in full, as is customary."""
    total = _count(model)
    for module in model.modules():
        if isinstance(module, MoeFeedForward):
            routing, experts = module.router.routing, _count(module.experts)
            total -= experts - experts * routing.num_choices // routing.num_experts
    return total


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
