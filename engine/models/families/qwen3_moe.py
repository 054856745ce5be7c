"""Qwen 3 MoE: norms over heads, many small experts, no shared expert."""

from __future__ import annotations

from functools import partial

from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import ModelConfig, parse_uniform_windows
from baton.engine.models.families import llama, mixtral, qwen2, qwen2_moe, qwen3
from baton.engine.models.skeleton.family import Family


def parse(keys: ConfigKeys) -> ModelConfig:
    is_windowed = keys.flag("use_sliding_window", False)
    window = keys.optional_count("sliding_window") if is_windowed else None
    config = llama.parse_windowed(keys, parse_uniform_windows(keys, window))
    return qwen2_moe.with_experts(keys, config, qwen2_moe.parse_experts(keys, config))


QWEN3_MOE = Family(
    description="Qwen 3 MoE: norms over heads, many small experts",
    parse=parse,
    build=partial(llama.build, head_norms=qwen3.head_norms),
    checkpoint={**llama.CHECKPOINT, **qwen3.HEAD_NORMS, **qwen2_moe.EXPERTS},
    other_names=(mixtral.FUSED,),
    defaults={**qwen2.DEFAULTS, "num_key_value_heads": 4},
    must_be={"mlp_bias": (False, None)},
)
