"""Qwen 1.5 and 2 MoE: routed experts, and a shared expert with a gate."""

from __future__ import annotations

from dataclasses import replace

from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import ModelConfig, parse_windows
from baton.engine.models.config.moe import MoeConfig, parse_routing, parse_sparse_layers
from baton.engine.models.families import llama, mixtral, qwen2
from baton.engine.models.skeleton.family import Family
from baton.kernels.experts.moe import Gating


def parse(keys: ConfigKeys) -> ModelConfig:
    config = llama.parse_windowed(keys, windows_of(keys))
    moe = replace(
        parse_experts(keys, config),
        shared_width=keys.count("shared_expert_intermediate_size"),
        has_shared_gate=True,
    )
    has_bias = keys.flag("qkv_bias", True)
    return replace(with_experts(keys, config, moe), has_qkv_bias=has_bias, has_out_bias=False)


def windows_of(keys: ConfigKeys) -> list[int | None]:
    """Every other of the first `max_window_layers` sees a window, if `use_sliding_window`."""
    is_used = keys.flag("use_sliding_window", False)
    window = keys.optional_count("sliding_window") if is_used else None
    end = keys.count("max_window_layers", least=0)
    num_layers = keys.count("num_hidden_layers")
    is_sliding = [window is not None and i % 2 == 0 and i < end for i in range(num_layers)]
    return parse_windows(keys, window, is_sliding)


def parse_experts(keys: ConfigKeys, config: ModelConfig) -> MoeConfig:
    return MoeConfig(
        routing=parse_routing(keys, is_normalised=keys.flag("norm_topk_prob", False)),
        expert_width=keys.count("moe_intermediate_size"),
        gating=Gating(activation=config.activation),
    )


def with_experts(keys: ConfigKeys, config: ModelConfig, moe: MoeConfig) -> ModelConfig:
    """`config` with `moe` in the layers that are not dense."""
    layers = zip(config.layers, parse_sparse_layers(keys), strict=True)
    return replace(
        config,
        layers=tuple(replace(layer, moe=moe if sparse else None) for layer, sparse in layers),
    )


EXPERTS = {
    "blocks.{i}.ffn.router.weight": ("model.layers.{i}.mlp.gate.weight",),
    "blocks.{i}.ffn.experts.gate_up": (
        "model.layers.{i}.mlp.experts.{e}.gate_proj.weight",
        "model.layers.{i}.mlp.experts.{e}.up_proj.weight",
    ),
    "blocks.{i}.ffn.experts.down": ("model.layers.{i}.mlp.experts.{e}.down_proj.weight",),
}

SHARED = {
    "blocks.{i}.ffn.shared.gate_up.weight": (
        "model.layers.{i}.mlp.shared_expert.gate_proj.weight",
        "model.layers.{i}.mlp.shared_expert.up_proj.weight",
    ),
    "blocks.{i}.ffn.shared.down.weight": ("model.layers.{i}.mlp.shared_expert.down_proj.weight",),
    "blocks.{i}.ffn.shared_gate.weight": ("model.layers.{i}.mlp.shared_expert_gate.weight",),
}

QWEN2_MOE = Family(
    description="Qwen 1.5 and 2 MoE: experts, and a gated one for all tokens",
    parse=parse,
    build=llama.build,
    checkpoint={**llama.CHECKPOINT, **EXPERTS, **SHARED},
    other_names=(mixtral.FUSED,),
    defaults={**qwen2.DEFAULTS, "num_key_value_heads": 16},
    must_be={"mlp_bias": (False, None)},
)
