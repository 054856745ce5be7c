"""Qwen 2 and 2.5, dense: Llama with biases on queries, keys and values; maybe windows."""

from __future__ import annotations

from dataclasses import replace

from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import ModelConfig, parse_windows
from baton.engine.models.families import llama
from baton.engine.models.skeleton.family import Family


def parse(keys: ConfigKeys) -> ModelConfig:
    config = llama.parse_windowed(keys, windows_of(keys))
    return replace(config, has_qkv_bias=True, has_out_bias=False)


def windows_of(keys: ConfigKeys) -> list[int | None]:
    """Layers from `max_window_layers` on see a window, if `use_sliding_window` says so."""
    is_used = keys.flag("use_sliding_window", False)
    window = keys.optional_count("sliding_window") if is_used else None
    first = keys.count("max_window_layers", least=0)
    is_sliding = [window is not None and i >= first for i in range(keys.count("num_hidden_layers"))]
    return parse_windows(keys, window, is_sliding)


DEFAULTS = {
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
}

QWEN2 = Family(
    description="Qwen 2 and 2.5, dense: biases on queries, keys and values",
    parse=parse,
    build=llama.build,
    checkpoint=llama.CHECKPOINT,
    defaults=DEFAULTS,
    must_be={"mlp_bias": (False, None)},
)
