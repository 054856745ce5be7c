"""Llama 2, 3 and 3.x: RMS norm, rotary positions, grouped-query attention, SwiGLU.

What other families share with it is taken from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from baton.engine.layers.attention import Attention, AttentionKind
from baton.engine.layers.block import Block
from baton.engine.layers.norm import AddRmsNorm, RmsNorm
from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import (
    LayerConfig,
    ModelConfig,
    parse_decoder,
    parse_heads,
    parse_uniform_windows,
)
from baton.engine.models.config.rope import CUSTOMARY, RopeKeys, parse_rope
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.family import Family
from baton.engine.models.skeleton.feed_forwards import feed_forward_of
from baton.kernels.products.linear import GATES


def parse(keys: ConfigKeys) -> ModelConfig:
    return parse_windowed(keys, parse_uniform_windows(keys, None))


def parse_windowed(
    keys: ConfigKeys, windows: Sequence[int | None], at: RopeKeys = CUSTOMARY
) -> ModelConfig:
    """`windows` are those of the layers, `at` tells how rotary positions are written down."""
    heads = parse_heads(keys)
    rope = parse_rope(keys, heads.head_dim, at)
    layers = [LayerConfig(rope=rope, attention=AttentionKind(window=w)) for w in windows]
    has_attention_bias = keys.flag("attention_bias", False)
    return replace(
        parse_decoder(keys, heads, layers, GATES),
        has_qkv_bias=has_attention_bias,
        has_out_bias=has_attention_bias,
        has_ffn_bias=keys.flag("mlp_bias", False),
    )


HeadNorms = Callable[[ModelConfig, LayerConfig], Callable[[], RmsNorm] | None]
"""Returns a factory of the norms over each head of a layer's queries and keys; None without such
norms."""


def no_head_norms(config: ModelConfig, layer: LayerConfig) -> None:
    """Llama's own have none."""


def build(config: ModelConfig, *, head_norms: HeadNorms = no_head_norms) -> Decoder:
    width, eps = config.hidden_size, config.norm_eps

    def new_block(layer: LayerConfig) -> nn.Module:
        return Block(
            attn_norm=AddRmsNorm(width, eps),
            attn=Attention(
                width,
                config.heads,
                layer.attention,
                biases=(config.has_qkv_bias, config.has_out_bias),
                head_norm=head_norms(config, layer),
            ),
            ffn_norm=AddRmsNorm(width, eps),
            ffn=feed_forward_of(config, layer),
        )

    return Decoder(config, new_block, AddRmsNorm(width, eps))


CHECKPOINT = {
    "embed.weight": ("model.embed_tokens.weight",),
    "blocks.{i}.attn_norm.weight": ("model.layers.{i}.input_layernorm.weight",),
    "blocks.{i}.attn.qkv.weight": (
        "model.layers.{i}.self_attn.q_proj.weight",
        "model.layers.{i}.self_attn.k_proj.weight",
        "model.layers.{i}.self_attn.v_proj.weight",
    ),
    "blocks.{i}.attn.qkv.bias": (
        "model.layers.{i}.self_attn.q_proj.bias",
        "model.layers.{i}.self_attn.k_proj.bias",
        "model.layers.{i}.self_attn.v_proj.bias",
    ),
    "blocks.{i}.attn.out.weight": ("model.layers.{i}.self_attn.o_proj.weight",),
    "blocks.{i}.attn.out.bias": ("model.layers.{i}.self_attn.o_proj.bias",),
    "blocks.{i}.ffn_norm.weight": ("model.layers.{i}.post_attention_layernorm.weight",),
    "blocks.{i}.ffn.gate_up.weight": (
        "model.layers.{i}.mlp.gate_proj.weight",
        "model.layers.{i}.mlp.up_proj.weight",
    ),
    "blocks.{i}.ffn.gate_up.bias": (
        "model.layers.{i}.mlp.gate_proj.bias",
        "model.layers.{i}.mlp.up_proj.bias",
    ),
    "blocks.{i}.ffn.down.weight": ("model.layers.{i}.mlp.down_proj.weight",),
    "blocks.{i}.ffn.down.bias": ("model.layers.{i}.mlp.down_proj.bias",),
    "norm.weight": ("model.norm.weight",),
    "head.weight": ("lm_head.weight",),
}
"""All weights; biases and a head are optional."""

LLAMA = Family(
    description="Llama 2, 3 and 3.x: grouped-query attention, SwiGLU",
    parse=parse,
    build=build,
    checkpoint=CHECKPOINT,
    defaults={"eos_token_id": 2, "hidden_act": "silu"},
    must_be={"use_sliding_window": (False, None)},
)
