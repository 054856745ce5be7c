"""Gemma 2: norms before and after attention and feed-forward, soft-capped scores and logits.

GeGLU; every other layer has a window. The embedding is scaled by the root of the width, scores by
that of `query_pre_attn_scalar` instead of the head's width, and a norm's weight is stored minus 1.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from baton.engine.layers.attention import Attention, AttentionKind
from baton.engine.layers.block import SandwichBlock
from baton.engine.layers.feed_forward import GatedFeedForward
from baton.engine.layers.norm import AddGemmaRmsNorm, GemmaRmsNorm
from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import (
    LayerConfig,
    ModelConfig,
    parse_decoder,
    parse_heads,
    parse_windows,
)
from baton.engine.models.config.rope import parse_rope
from baton.engine.models.families import llama
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.family import Family
from baton.kernels.attention.scoring import Scoring
from baton.kernels.products.linear import GATES


def parse(keys: ConfigKeys) -> ModelConfig:
    heads = parse_heads(keys)
    rope = parse_rope(keys, heads.head_dim)
    scoring = parse_scoring(keys)
    windows = parse_windows(
        keys,
        keys.optional_count("sliding_window"),
        [i % 2 == 0 for i in range(keys.count("num_hidden_layers"))],
    )
    kinds = [AttentionKind(window=window, scoring=scoring) for window in windows]
    layers = [LayerConfig(rope=rope, attention=kind) for kind in kinds]
    has_bias = keys.flag("attention_bias", False)
    return replace(
        parse_decoder(keys, heads, layers, GATES),
        has_qkv_bias=has_bias,
        has_out_bias=has_bias,
        logit_softcap=keys.optional_positive("final_logit_softcapping"),
    )


def parse_scoring(keys: ConfigKeys) -> Scoring:
    return Scoring(
        scale=keys.positive("query_pre_attn_scalar") ** -0.5,
        softcap=keys.optional_positive("attn_logit_softcapping"),
    )


def build(config: ModelConfig, *, has_head_norm: bool = False) -> Decoder:
    width, eps = config.hidden_size, config.norm_eps

    def new_block(layer: LayerConfig) -> nn.Module:
        return SandwichBlock(
            attn_norms=(AddGemmaRmsNorm(width, eps), GemmaRmsNorm(width, eps)),
            attn=Attention(
                width,
                config.heads,
                layer.attention,
                biases=(config.has_qkv_bias, config.has_out_bias),
                head_norm=(
                    (lambda: GemmaRmsNorm(config.heads.head_dim, eps)) if has_head_norm else None
                ),
            ),
            ffn_norms=(AddGemmaRmsNorm(width, eps), GemmaRmsNorm(width, eps)),
            ffn=GatedFeedForward(width, config.intermediate_size, config.activation),
        )

    return Decoder(config, new_block, AddGemmaRmsNorm(width, eps), embed_scale=width**0.5)


CHECKPOINT = {
    **llama.CHECKPOINT,
    "blocks.{i}.attn_post_norm.weight": ("model.layers.{i}.post_attention_layernorm.weight",),
    "blocks.{i}.ffn_norm.weight": ("model.layers.{i}.pre_feedforward_layernorm.weight",),
    "blocks.{i}.ffn_post_norm.weight": ("model.layers.{i}.post_feedforward_layernorm.weight",),
}

DEFAULTS = {
    "eos_token_id": 1,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}

GEMMA2 = Family(
    description="Gemma 2: pre- and post-norms, soft-capping, every other layer with a window",
    parse=parse,
    build=build,
    checkpoint=CHECKPOINT,
    names={"hidden_act": "hidden_activation"},
    defaults={
        **DEFAULTS,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "max_position_embeddings": 8192,
    },
    must_be={"use_bidirectional_attention": (False, None)},
)
