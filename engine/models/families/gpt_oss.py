"""GPT-OSS: attention sinks, a window in every other layer, experts with biases and a clamped gate.

A sink is an additional score of a head: it takes weight, and adds no value. Experts are stored
stacked and transposed, with gate and up columns alternating; in MXFP4 these are rows.
"""

from __future__ import annotations

from dataclasses import replace

from baton.engine.models.config.arrangement import ALTERNATING, TRANSPOSED, TRANSPOSED_ALTERNATING
from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import ModelConfig, parse_windows
from baton.engine.models.config.moe import MoeConfig, parse_routing
from baton.engine.models.config.rope import RopeKeys
from baton.engine.models.families import llama
from baton.engine.models.skeleton.family import Family
from baton.kernels.experts.moe import CLAMPED, Gating
from baton.kernels.experts.routing import Score

ROPE = RopeKeys(default_theta=150000.0)
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Default RoPE parameters."""


def parse(keys: ConfigKeys) -> ModelConfig:
    if keys.value("rope_parameters") is None:
        keys = keys.with_default("rope_scaling", YARN)
    is_sliding = [i % 2 == 0 for i in range(keys.count("num_hidden_layers"))]
    windows = parse_windows(keys, keys.optional_count("sliding_window"), is_sliding)
    config = llama.parse_windowed(keys, windows, ROPE)
    moe = MoeConfig(
        routing=parse_routing(keys, score=Score.SOFTMAX_OF_CHOSEN),
        expert_width=config.intermediate_size,
        gating=Gating(
            activation=CLAMPED,
            alpha=keys.positive("swiglu_alpha", 1.702),
            limit=keys.positive("swiglu_limit", 7.0),
        ),
        has_router_bias=True,
        has_expert_bias=True,
    )
    layers = (
        replace(layer, moe=moe, attention=replace(layer.attention, has_sinks=True))
        for layer in config.layers
    )
    return replace(config, layers=tuple(layers))


EXPERTS = {
    "blocks.{i}.attn.sinks": ("model.layers.{i}.self_attn.sinks",),
    "blocks.{i}.ffn.router.weight": ("model.layers.{i}.mlp.router.weight",),
    "blocks.{i}.ffn.router.bias": ("model.layers.{i}.mlp.router.bias",),
    "blocks.{i}.ffn.experts.gate_up": ("model.layers.{i}.mlp.experts.gate_up_proj",),
    "blocks.{i}.ffn.experts.gate_up_bias": ("model.layers.{i}.mlp.experts.gate_up_proj_bias",),
    "blocks.{i}.ffn.experts.down": ("model.layers.{i}.mlp.experts.down_proj",),
    "blocks.{i}.ffn.experts.down_bias": ("model.layers.{i}.mlp.experts.down_proj_bias",),
}

GPT_OSS = Family(
    description="GPT-OSS: attention sinks, every other layer a window, experts in MXFP4",
    parse=parse,
    build=llama.build,
    checkpoint={**llama.CHECKPOINT, **EXPERTS},
    arrangements={
        "blocks.{i}.ffn.experts.gate_up": TRANSPOSED_ALTERNATING,
        "blocks.{i}.ffn.experts.gate_up_bias": ALTERNATING,
        "blocks.{i}.ffn.experts.down": TRANSPOSED,
    },
    defaults={
        "hidden_act": "silu",
        "head_dim": 64,
        "num_key_value_heads": 8,
        "sliding_window": 128,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "attention_bias": True,
    },
    must_be={"use_sliding_window": (None, True), "mlp_bias": (None,)},
)
