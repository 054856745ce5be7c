"""Qwen 3, dense: Llama with an RMS norm over each head of the queries and keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from baton.engine.layers.norm import RmsNorm
from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import LayerConfig, ModelConfig
from baton.engine.models.families import llama, qwen2
from baton.engine.models.skeleton.family import Family


def parse(keys: ConfigKeys) -> ModelConfig:
    return llama.parse_windowed(keys, qwen2.windows_of(keys))


def head_norms(config: ModelConfig, layer: LayerConfig) -> Callable[[], RmsNorm]:
    return partial(RmsNorm, config.heads.head_dim, config.norm_eps)


HEAD_NORMS = {
    "blocks.{i}.attn.q_norm.weight": ("model.layers.{i}.self_attn.q_norm.weight",),
    "blocks.{i}.attn.k_norm.weight": ("model.layers.{i}.self_attn.k_norm.weight",),
}

QWEN3 = Family(
    description="Qwen 3, dense: a norm over each head of the queries and keys",
    parse=parse,
    build=partial(llama.build, head_norms=head_norms),
    checkpoint={**llama.CHECKPOINT, **HEAD_NORMS},
    defaults={**qwen2.DEFAULTS, "head_dim": 128},
    must_be={"mlp_bias": (False, None)},
)
