"""Phi-3 and Phi-4: Llama with fused projections, partial rotary positions, LongRoPE, a window."""

from __future__ import annotations

from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import ModelConfig, parse_uniform_windows
from baton.engine.models.config.rope import RopeKeys
from baton.engine.models.families import llama
from baton.engine.models.skeleton.family import Family

ROPE_KEYS = RopeKeys(may_be_partial=True, aliases={"su": "longrope", "yarn": "longrope"})
"""The first checkpoints called LongRoPE by other names."""


def parse(keys: ConfigKeys) -> ModelConfig:
    windows = parse_uniform_windows(keys, keys.optional_count("sliding_window"))
    return llama.parse_windowed(keys, windows, ROPE_KEYS)


CHECKPOINT = {
    **llama.CHECKPOINT,
    "blocks.{i}.attn.qkv.weight": ("model.layers.{i}.self_attn.qkv_proj.weight",),
    "blocks.{i}.ffn.gate_up.weight": ("model.layers.{i}.mlp.gate_up_proj.weight",),
}

PHI3 = Family(
    description="Phi-3 and Phi-4: partial rotary positions, LongRoPE, sliding window",
    parse=parse,
    build=llama.build,
    checkpoint=CHECKPOINT,
    defaults={
        "eos_token_id": 32000,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    },
    must_be={"attention_bias": (False, None), "mlp_bias": (False, None)},
)
