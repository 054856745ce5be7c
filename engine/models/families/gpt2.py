"""GPT-2: layer norm, learned positions, multi-head attention, GELU; a bias everywhere."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from baton.engine.layers.attention import Attention, AttentionKind
from baton.engine.layers.block import Block
from baton.engine.layers.feed_forward import PLAIN, FeedForward
from baton.engine.layers.norm import AddLayerNorm
from baton.engine.models.config.arrangement import TRANSPOSED
from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import (
    LayerConfig,
    ModelConfig,
    parse_decoder,
    parse_heads,
)
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.family import Family
from baton.kernels.attention.scoring import Scoring


def parse(keys: ConfigKeys) -> ModelConfig:
    keys = keys.with_default("intermediate_size", 4 * keys.count("hidden_size"))
    heads = parse_heads(keys)
    scale = heads.head_dim**-0.5 if keys.flag("scale_attn_weights", True) else 1.0
    is_by_layer = keys.flag("scale_attn_by_inverse_layer_idx", False)
    scales = [scale / (i + 1 if is_by_layer else 1) for i in range(keys.count("num_hidden_layers"))]
    layers = [
        LayerConfig(rope=None, attention=AttentionKind(scoring=Scoring(scale=scale)))
        for scale in scales
    ]
    return replace(
        parse_decoder(keys, heads, layers, PLAIN),
        has_qkv_bias=True,
        has_out_bias=True,
        has_ffn_bias=True,
    )


def build(config: ModelConfig) -> Decoder:
    width, eps = config.hidden_size, config.norm_eps

    def new_block(layer: LayerConfig) -> nn.Module:
        return Block(
            attn_norm=AddLayerNorm(width, eps),
            attn=Attention(width, config.heads, layer.attention, biases=(True, True)),
            ffn_norm=AddLayerNorm(width, eps),
            ffn=FeedForward(width, config.intermediate_size, config.activation, has_bias=True),
        )

    return Decoder(config, new_block, AddLayerNorm(width, eps), has_learned_positions=True)


CHECKPOINT = {
    "embed.weight": ("transformer.wte.weight",),
    "positions.weight": ("transformer.wpe.weight",),
    "blocks.{i}.attn_norm.weight": ("transformer.h.{i}.ln_1.weight",),
    "blocks.{i}.attn_norm.bias": ("transformer.h.{i}.ln_1.bias",),
    "blocks.{i}.attn.qkv.weight": ("transformer.h.{i}.attn.c_attn.weight",),
    "blocks.{i}.attn.qkv.bias": ("transformer.h.{i}.attn.c_attn.bias",),
    "blocks.{i}.attn.out.weight": ("transformer.h.{i}.attn.c_proj.weight",),
    "blocks.{i}.attn.out.bias": ("transformer.h.{i}.attn.c_proj.bias",),
    "blocks.{i}.ffn_norm.weight": ("transformer.h.{i}.ln_2.weight",),
    "blocks.{i}.ffn_norm.bias": ("transformer.h.{i}.ln_2.bias",),
    "blocks.{i}.ffn.up.weight": ("transformer.h.{i}.mlp.c_fc.weight",),
    "blocks.{i}.ffn.up.bias": ("transformer.h.{i}.mlp.c_fc.bias",),
    "blocks.{i}.ffn.down.weight": ("transformer.h.{i}.mlp.c_proj.weight",),
    "blocks.{i}.ffn.down.bias": ("transformer.h.{i}.mlp.c_proj.bias",),
    "norm.weight": ("transformer.ln_f.weight",),
    "norm.bias": ("transformer.ln_f.bias",),
    "head.weight": ("lm_head.weight",),
}

MATRICES = ("attn.qkv", "attn.out", "ffn.up", "ffn.down")

GPT2 = Family(
    description="GPT-2: layer norm, learned positions, GELU, biases",
    parse=parse,
    build=build,
    checkpoint=CHECKPOINT,
    arrangements={f"blocks.{{i}}.{matrix}.weight": TRANSPOSED for matrix in MATRICES},
    base_prefix="transformer.",
    buffers=(".attn.bias", ".attn.masked_bias"),  # the causal mask
    names={
        "hidden_act": "activation_function",
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    defaults={
        "activation_function": "gelu_new",
        "eos_token_id": 50256,
        "layer_norm_epsilon": 1e-5,
        "n_positions": 1024,
        "tie_word_embeddings": True,
    },
    must_be={"add_cross_attention": (False, None)},
)
