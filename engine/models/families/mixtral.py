"""Mixtral: Mistral whose feed-forwards are experts, two of eight a token."""

from __future__ import annotations

from dataclasses import replace

from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import ModelConfig, parse_uniform_windows
from baton.engine.models.config.moe import MoeConfig, parse_routing
from baton.engine.models.config.rope import RopeKeys
from baton.engine.models.families import llama, mistral
from baton.engine.models.skeleton.family import Family
from baton.kernels.experts.moe import Gating

ROPE = RopeKeys(default_theta=1e6)


def parse(keys: ConfigKeys) -> ModelConfig:
    windows = parse_uniform_windows(keys, keys.optional_count("sliding_window"))
    config = llama.parse_windowed(keys, windows, ROPE)
    moe = MoeConfig(
        routing=parse_routing(keys, is_normalised=True),
        expert_width=config.intermediate_size,
        gating=Gating(activation=config.activation),
    )
    return replace(config, layers=tuple(replace(layer, moe=moe) for layer in config.layers))


EXPERTS = {
    "blocks.{i}.ffn.router.weight": ("model.layers.{i}.block_sparse_moe.gate.weight",),
    "blocks.{i}.ffn.experts.gate_up": (
        "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight",
        "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight",
    ),
    "blocks.{i}.ffn.experts.down": ("model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight",),
}

FUSED = {
    "blocks.{i}.ffn.router.weight": ("model.layers.{i}.mlp.gate.weight",),
    "blocks.{i}.ffn.experts.gate_up": ("model.layers.{i}.mlp.experts.gate_up_proj",),
    "blocks.{i}.ffn.experts.down": ("model.layers.{i}.mlp.experts.down_proj",),
}
"""Expert names as transformers 5 holds them, and optionally saves them."""

MIXTRAL = Family(
    description="Mixtral: Mistral with experts, two of eight a token",
    parse=parse,
    build=llama.build,
    checkpoint={**llama.CHECKPOINT, **EXPERTS},
    other_names=(FUSED,),
    defaults={
        **mistral.MISTRAL.defaults,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
    },
    must_be=mistral.MISTRAL.must_be,
)
