"""Falcon with rotary positions: attention and feed-forward in parallel, layer norm, GELU.

7B                one KV head, one norm for both
11B, 40B, 180B    the new architecture: several KV heads, two norms or one
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from baton.engine.layers.attention import Attention
from baton.engine.layers.block import ParallelBlock, SplitParallelBlock
from baton.engine.layers.feed_forward import PLAIN, FeedForward
from baton.engine.layers.norm import AddLayerNorm, LayerNorm
from baton.engine.models.config.arrangement import BY_KV_HEAD
from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import (
    LayerConfig,
    ModelConfig,
    parse_decoder,
    parse_heads,
)
from baton.engine.models.config.rope import parse_rope
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.family import Family


def parse(keys: ConfigKeys) -> ModelConfig:
    keys = keys.with_default("intermediate_size", 4 * keys.count("hidden_size"))
    heads = parse_heads(keys)
    is_new = keys.flag("new_decoder_architecture", False)
    if not is_new:  # `num_kv_heads` has no say there
        num_kv_heads = 1 if keys.flag("multi_query", True) else heads.num_heads
        heads = replace(heads, num_kv_heads=num_kv_heads)
    layer = LayerConfig(rope=parse_rope(keys, heads.head_dim))
    has_bias = keys.flag("bias", False)
    return replace(
        parse_decoder(keys, heads, [layer] * keys.count("num_hidden_layers"), PLAIN),
        has_qkv_bias=has_bias,
        has_out_bias=has_bias,
        has_ffn_bias=has_bias,
        has_ffn_norm=is_new and keys.count("num_ln_in_parallel_attn", 2) == 2,
    )


def build(config: ModelConfig) -> Decoder:
    width, eps = config.hidden_size, config.norm_eps

    def new_block(layer: LayerConfig) -> nn.Module:
        biases = (config.has_qkv_bias, config.has_out_bias)
        attn = Attention(width, config.heads, layer.attention, biases=biases)
        ffn = FeedForward(
            width, config.intermediate_size, config.activation, has_bias=config.has_ffn_bias
        )
        if not config.has_ffn_norm:
            return ParallelBlock(norm=AddLayerNorm(width, eps), attn=attn, ffn=ffn)
        return SplitParallelBlock(
            attn_norm=AddLayerNorm(width, eps), attn=attn, ffn_norm=LayerNorm(width, eps), ffn=ffn
        )

    return Decoder(config, new_block, AddLayerNorm(width, eps))


CHECKPOINT = {
    "embed.weight": ("transformer.word_embeddings.weight",),
    "blocks.{i}.norm.weight": ("transformer.h.{i}.input_layernorm.weight",),
    "blocks.{i}.norm.bias": ("transformer.h.{i}.input_layernorm.bias",),
    "blocks.{i}.attn_norm.weight": ("transformer.h.{i}.ln_attn.weight",),
    "blocks.{i}.attn_norm.bias": ("transformer.h.{i}.ln_attn.bias",),
    "blocks.{i}.attn.qkv.weight": ("transformer.h.{i}.self_attention.query_key_value.weight",),
    "blocks.{i}.attn.qkv.bias": ("transformer.h.{i}.self_attention.query_key_value.bias",),
    "blocks.{i}.attn.out.weight": ("transformer.h.{i}.self_attention.dense.weight",),
    "blocks.{i}.attn.out.bias": ("transformer.h.{i}.self_attention.dense.bias",),
    "blocks.{i}.ffn_norm.weight": ("transformer.h.{i}.ln_mlp.weight",),
    "blocks.{i}.ffn_norm.bias": ("transformer.h.{i}.ln_mlp.bias",),
    "blocks.{i}.ffn.up.weight": ("transformer.h.{i}.mlp.dense_h_to_4h.weight",),
    "blocks.{i}.ffn.up.bias": ("transformer.h.{i}.mlp.dense_h_to_4h.bias",),
    "blocks.{i}.ffn.down.weight": ("transformer.h.{i}.mlp.dense_4h_to_h.weight",),
    "blocks.{i}.ffn.down.bias": ("transformer.h.{i}.mlp.dense_4h_to_h.bias",),
    "norm.weight": ("transformer.ln_f.weight",),
    "norm.bias": ("transformer.ln_f.bias",),
    "head.weight": ("lm_head.weight",),
}

FALCON = Family(
    description="Falcon with rotary positions: parallel blocks, few KV heads",
    parse=parse,
    build=build,
    checkpoint=CHECKPOINT,
    arrangements={
        "blocks.{i}.attn.qkv.weight": BY_KV_HEAD,
        "blocks.{i}.attn.qkv.bias": BY_KV_HEAD,
    },
    names={
        "hidden_act": "activation",
        "intermediate_size": "ffn_hidden_size",
        "num_key_value_heads": "num_kv_heads",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    defaults={
        "activation": "gelu",
        "eos_token_id": 11,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    },
    must_be={
        "alibi": (False, None),
        "apply_residual_connection_post_layernorm": (False, None),
        "parallel_attn": (True, None),
    },
)
