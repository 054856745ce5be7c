"""DeepSeek V3 and V3.1: V2 with experts chosen by sigmoid scores, group by group.

A correction bias, learnt without an auxiliary loss, affects the choice of experts but not their
weights. Checkpoints have layers after the last that predict a further token each (MTP): they are
not part of the decoder, and are loaded only as draft heads.
"""

from __future__ import annotations

from dataclasses import replace

from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.config.moe import parse_routing
from baton.engine.models.families import deepseek_v2, mixtral
from baton.engine.models.skeleton.family import Family
from baton.kernels.experts.routing import Score


def parse(keys: ConfigKeys) -> ModelConfig:
    routing = parse_routing(
        keys,
        score=Score.SIGMOID,
        is_normalised=keys.flag("norm_topk_prob", True),
        scale=keys.positive("routed_scaling_factor", 1.0),
        groups=deepseek_v2.parse_groups(keys, num_best=2),
    )
    is_interleaved = keys.flag("rope_interleave", True)
    config = deepseek_v2.parse_deepseek(keys, routing, is_interleaved=is_interleaved)
    layers = [
        layer if layer.moe is None else replace(layer, moe=replace(layer.moe, has_correction=True))
        for layer in config.layers
    ]
    return replace(config, layers=tuple(layers))


DEEPSEEK_V3 = Family(
    description="DeepSeek V3 and V3.1: latent attention, experts chosen by group and correction",
    parse=parse,
    build=deepseek_v2.build,
    checkpoint=deepseek_v2.CHECKPOINT,
    other_names=(mixtral.FUSED,),
    further_layers="model.layers.{i}.",
    defaults={
        **deepseek_v2.DEFAULTS,
        "eos_token_id": 1,
        "first_k_dense_replace": 3,
        "max_position_embeddings": 4096,
        "n_group": 8,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "routed_scaling_factor": 2.5,
        "topk_group": 4,
    },
    must_be={
        "moe_layer_freq": (1,),
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
    },
)
