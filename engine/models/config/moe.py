"""MoE keys of `config.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from baton.engine.models.config.description import wrong
from baton.engine.models.config.keys import ConfigKeys
from baton.kernels.experts.moe import SWIGLU, Gating
from baton.kernels.experts.routing import Routing

NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of one key: transformers 5 writes another one for Qwen than Qwen's authors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """The feed-forward of a layer that has experts."""

    routing: Routing
    expert_width: int
    num_slots: int | None = None
    """Experts kept on this rank, if not all."""
    shared_width: int = 0
    """The width of the shared expert; 0 if there is none."""
    gating: Gating = SWIGLU
    is_input_scaled: bool = False
    """Whether routing weights multiply an expert's input rather than its output."""
    has_shared_gate: bool = False
    has_router_bias: bool = False
    has_correction: bool = False
    """Whether the router has a correction bias, which only affects the choice."""
    num_hashed_tokens: int = 0
    """Vocabulary size of the table that chooses experts by token id; 0: the router chooses."""
    has_expert_bias: bool = False


def parse_routing(keys: ConfigKeys, **options: Any) -> Routing:
    """Routing by the customary keys. Raises CheckpointError if so many experts cannot be chosen."""
    names = [name for name in NUM_EXPERTS if keys.value(name) is not None]
    name = names[0] if names else NUM_EXPERTS[0]
    num_experts, num_choices = keys.count(name), keys.count("num_experts_per_tok")
    try:
        return Routing(num_experts=num_experts, num_choices=num_choices, **options)
    except ValueError as error:
        raise wrong(f"`{name}`, `num_experts_per_tok`: {error}") from error


def parse_sparse_layers(keys: ConfigKeys) -> list[bool]:
    """Whether each layer has experts: every n-th does, except listed ones."""
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
