"""The keys of `config.json` that tell of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from baton.core.errors import CheckpointError
from baton.engine.models.config.keys import ConfigKeys
from baton.kernels.experts.moe import SWIGLU, Gating
from baton.kernels.experts.routing import Routing

NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""One key by its names: transformers 5 writes another for Qwen than Qwen does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """The feed-forward of a layer that has experts."""

    routing: Routing
    expert_width: int
    num_slots: int | None = None
    """Experts that are kept, if these are not all."""
    shared_width: int = 0
    """The width of the expert that all tokens go through; 0 if there is none."""
    gating: Gating = SWIGLU
    is_input_scaled: bool = False
    """A share multiplies what an expert reads, not what it gives."""
    has_shared_gate: bool = False
    has_router_bias: bool = False
    has_correction: bool = False
    """Whether the router has one that joins the choice alone."""
    num_hashed_tokens: int = 0
    """How many there are that say which experts, the router only saying how much of each; or 0."""
    has_expert_bias: bool = False


def parse_routing(keys: ConfigKeys, **options: Any) -> Routing:
    """Routing by the customary keys. Raises CheckpointError if so many experts cannot be chosen."""
    names = [name for name in NUM_EXPERTS if keys.value(name) is not None]
    name = names[0] if names else NUM_EXPERTS[0]
    num_experts, num_choices = keys.count(name), keys.count("num_experts_per_tok")
    try:
        return Routing(num_experts=num_experts, num_choices=num_choices, **options)
    except ValueError as error:
        raise CheckpointError(f"config.json: `{name}`, `num_experts_per_tok`: {error}") from error


def parse_sparse_layers(keys: ConfigKeys) -> list[bool]:
    """Which layers have experts: every so many, but for those that are named."""
    step = keys.count("decoder_sparse_step", 1)
    dense = parse_layer_numbers(keys, "mlp_only_layers") or ()
    return [
        (layer + 1) % step == 0 and layer not in dense
        for layer in range(keys.count("num_hidden_layers"))
    ]


def parse_layer_numbers(keys: ConfigKeys, key: str) -> Sequence[int] | None:
    value = keys.value(key)
    num_layers = keys.count("num_hidden_layers")
    if value is None:
        return None
    if not isinstance(value, list) or not all(
        isinstance(layer, int) and 0 <= layer < num_layers for layer in value
    ):
        raise keys.complaint(key, f"must be numbers of layers below {num_layers}")
    return value
