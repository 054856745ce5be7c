"""Llama 4, text: one of many experts per token and a shared one; chunked attention; NoPE layers.

Most layers have rotary positions, with a norm over each head, and see only the chunk of a token.
Every fourth has no positions (NoPE) and sees all tokens; there, queries are scaled by position.
Routing weights multiply the input of an expert. Experts are stored in one tensor per layer, inputs
first.

The checkpoint rotates adjacent dimensions, and this code dimensions half a head apart, so the rows
of queries and keys are permuted when they are loaded; products of two heads do not change. A head's
norm is the same before and after rotation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from baton.engine.layers.attention import AttentionKind
from baton.engine.layers.norm import RmsNorm, UnitNorm
from baton.engine.models.config.arrangement import PAIRS_APART, TRANSPOSED
from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import (
    FULL,
    LayerConfig,
    ModelConfig,
    parse_decoder,
    parse_heads,
)
from baton.engine.models.config.moe import MoeConfig, parse_layer_numbers, parse_routing
from baton.engine.models.config.rope import RopeKeys, parse_rope
from baton.engine.models.families import llama
from baton.engine.models.skeleton.family import Family
from baton.kernels.experts.moe import Gating
from baton.kernels.experts.routing import Score
from baton.kernels.paging.window import Chunks
from baton.kernels.positions.query_temperature import Temperature
from baton.kernels.products.linear import GATES

CHUNKED = "chunked_attention"
ROPE = RopeKeys(default_theta=500_000.0)


def parse(keys: ConfigKeys) -> ModelConfig:
    heads, num_layers = parse_heads(keys), keys.count("num_hidden_layers")
    rope = parse_rope(keys, heads.head_dim, ROPE)
    has_rope = _rope_layers(keys, num_layers)
    chunk = keys.optional_count("attention_chunk_size")
    is_chunked = _chunked_layers(keys, has_rope)
    layers = [
        LayerConfig(
            rope=rope if has_rope[layer] else None,
            attention=AttentionKind(
                window=Chunks(chunk) if chunk is not None and is_chunked[layer] else None,
                temperature=None if has_rope[layer] else _temperature(keys),
            ),
        )
        for layer in range(num_layers)
    ]
    has_bias = keys.flag("attention_bias", False)
    config = replace(
        parse_decoder(keys, heads, layers, GATES),
        intermediate_size=keys.count("intermediate_size_mlp"),
        has_qkv_bias=has_bias,
        has_out_bias=has_bias,
        has_head_norm=keys.flag("use_qk_norm", True),
    )
    return _with_experts(keys, config)


def _with_experts(keys: ConfigKeys, config: ModelConfig) -> ModelConfig:
    width = keys.count("intermediate_size")
    moe = MoeConfig(
        routing=parse_routing(keys, score=Score.SIGMOID_OF_CHOSEN),
        expert_width=width,
        shared_width=width,
        gating=Gating(activation=config.activation),
        is_input_scaled=True,
    )
    step = keys.count("interleave_moe_layer_step", 1)
    sparse = parse_layer_numbers(keys, "moe_layers")
    if sparse is None:
        sparse = range(step - 1, config.num_layers, step)
    layers = [
        replace(layer, moe=moe) if number in sparse else layer
        for number, layer in enumerate(config.layers)
    ]
    return replace(config, layers=tuple(layers))


def _rope_layers(keys: ConfigKeys, num_layers: int) -> Sequence[bool]:
    """`no_rope_layers` has a 1 for layers with rotary positions, and may be empty or absent."""
    found = keys.value("no_rope_layers")
    if not found:
        interval = keys.count("no_rope_layer_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if not isinstance(found, list) or len(found) != num_layers or not {*found} <= {0, 1}:
        raise keys.complaint("no_rope_layers", f"must be {num_layers} times 0 or 1")
    return [one == 1 for one in found]


def _chunked_layers(keys: ConfigKeys, has_rope: Sequence[bool]) -> Sequence[bool]:
    """Whether each layer's attention is chunked, by `layer_types`; without it, layers with RoPE
    are."""
    types = keys.value("layer_types")
    if types is None:
        return has_rope
    if (
        not isinstance(types, list)
        or len(types) != len(has_rope)
        or any(kind not in (FULL, CHUNKED) for kind in types)
    ):
        raise keys.complaint(
            "layer_types", f"must be {len(has_rope)} times {FULL!r} or {CHUNKED!r}"
        )
    return [kind == CHUNKED for kind in types]


def _temperature(keys: ConfigKeys) -> Temperature | None:
    """`attn_temperature_tuning` is true or false, or in the first checkpoints a number."""
    if not keys.value("attn_temperature_tuning", True):
        return None
    return Temperature(
        growth=keys.positive("attn_scale", 0.1), step=keys.positive("floor_scale", 8192)
    )


def head_norms(config: ModelConfig, layer: LayerConfig) -> Callable[[], RmsNorm] | None:
    if not config.has_head_norm or layer.rope is None:
        return None
    return partial(UnitNorm, config.heads.head_dim, config.norm_eps)


LAYER = "language_model.model.layers.{i}."
QUERIES, KEYS, VALUES = (LAYER + f"self_attn.{name}_proj" for name in "qkv")
FFN = LAYER + "feed_forward."

CHECKPOINT = {
    "embed.weight": ("language_model.model.embed_tokens.weight",),
    "blocks.{i}.attn_norm.weight": (LAYER + "input_layernorm.weight",),
    "blocks.{i}.attn.qkv.weight": (QUERIES + ".weight", KEYS + ".weight", VALUES + ".weight"),
    "blocks.{i}.attn.qkv.bias": (QUERIES + ".bias", KEYS + ".bias", VALUES + ".bias"),
    "blocks.{i}.attn.out.weight": (LAYER + "self_attn.o_proj.weight",),
    "blocks.{i}.attn.out.bias": (LAYER + "self_attn.o_proj.bias",),
    "blocks.{i}.ffn_norm.weight": (LAYER + "post_attention_layernorm.weight",),
    "blocks.{i}.ffn.gate_up.weight": (FFN + "gate_proj.weight", FFN + "up_proj.weight"),
    "blocks.{i}.ffn.down.weight": (FFN + "down_proj.weight",),
    "blocks.{i}.ffn.router.weight": (FFN + "router.weight",),
    "blocks.{i}.ffn.experts.gate_up": (FFN + "experts.gate_up_proj",),
    "blocks.{i}.ffn.experts.down": (FFN + "experts.down_proj",),
    "blocks.{i}.ffn.shared.gate_up.weight": (
        FFN + "shared_expert.gate_proj.weight",
        FFN + "shared_expert.up_proj.weight",
    ),
    "blocks.{i}.ffn.shared.down.weight": (FFN + "shared_expert.down_proj.weight",),
    "norm.weight": ("language_model.model.norm.weight",),
    "head.weight": ("language_model.lm_head.weight",),
}

LLAMA4 = Family(
    description="Llama 4, text: an expert of many and one for all, chunks, NoPE layers",
    parse=parse,
    build=partial(llama.build, head_norms=head_norms),
    checkpoint=CHECKPOINT,
    arrangements={
        **{name + end: PAIRS_APART for name in (QUERIES, KEYS) for end in (".weight", ".bias")},
        "blocks.{i}.ffn.experts.gate_up": TRANSPOSED,
        "blocks.{i}.ffn.experts.down": TRANSPOSED,
    },
    base_prefix="language_model.",
    foreign=("vision_model.", "multi_modal_projector."),
    text_key="text_config",
    defaults={
        "attention_chunk_size": 8192,
        "hidden_act": "silu",
        "intermediate_size_mlp": 16384,
        "max_position_embeddings": 131072,
        "num_experts_per_tok": 1,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
    },
    must_be={"use_sliding_window": (False, None)},
)

LLAMA4_OF_SEEING = replace(
    LLAMA4, description="Llama 4 as released: the text model of it, what sees is left out"
)
