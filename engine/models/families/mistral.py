"""Mistral: Llama whose layers see a window of the past, in its first versions."""

from __future__ import annotations

from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import ModelConfig, parse_uniform_windows
from baton.engine.models.families import llama
from baton.engine.models.skeleton.family import Family


def parse(keys: ConfigKeys) -> ModelConfig:
    windows = parse_uniform_windows(keys, keys.optional_count("sliding_window"))
    return llama.parse_windowed(keys, windows)


MISTRAL = Family(
    description="Mistral: Llama with a sliding window, which may be null",
    parse=parse,
    build=llama.build,
    checkpoint=llama.CHECKPOINT,
    defaults={
        "eos_token_id": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    must_be={"attention_bias": (False, None), "mlp_bias": (False, None)},
)
