"""DeepSeek V2 and V2-Lite: latent attention, with routed and shared experts.

The first layers have a dense feed-forward. V2-Lite projects queries from x directly, and chooses
among all experts; V2 among those of the best groups. V3 uses parts of this file.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from baton.engine.layers.attention import AttentionKind
from baton.engine.layers.block import Block
from baton.engine.layers.mla import LatentAttention, LatentConfig
from baton.engine.layers.norm import AddRmsNorm
from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import LayerConfig, ModelConfig, parse_decoder
from baton.engine.models.config.moe import MoeConfig, parse_routing
from baton.engine.models.config.rope import parse_rope, parse_score_factor
from baton.engine.models.families import llama, mixtral, qwen2_moe
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.family import Family
from baton.engine.models.skeleton.feed_forwards import feed_forward_of
from baton.kernels.attention.scoring import Scoring
from baton.kernels.experts.moe import Gating
from baton.kernels.experts.routing import ExpertGroups, Routing
from baton.kernels.latent_attention.latent_heads import LatentShape
from baton.kernels.products.linear import GATES

GREEDY, BY_GROUP = "greedy", "group_limited_greedy"
"""Values of `topk_method`."""


def parse(keys: ConfigKeys) -> ModelConfig:
    is_by_group = keys.choice("topk_method", (GREEDY, BY_GROUP), GREEDY) == BY_GROUP
    routing = parse_routing(
        keys,
        scale=keys.positive("routed_scaling_factor", 1.0),
        groups=parse_groups(keys, num_best=1) if is_by_group else None,
    )
    return parse_deepseek(keys, routing, is_interleaved=True)


def parse_groups(keys: ConfigKeys, num_best: int) -> ExpertGroups:
    """`num_best`: number of best scores of a group that are added to its score."""
    return ExpertGroups(
        num_groups=keys.count("n_group"), num_chosen=keys.count("topk_group"), num_best=num_best
    )


def parse_deepseek(keys: ConfigKeys, routing: Routing, *, is_interleaved: bool) -> ModelConfig:
    latent = LatentConfig(
        shape=LatentShape(
            num_heads=keys.count("num_attention_heads"),
            nope_dim=keys.count("qk_nope_head_dim"),
            rope_dim=keys.count("qk_rope_head_dim"),
            value_dim=keys.count("v_head_dim"),
            latent_dim=keys.count("kv_lora_rank"),
        ),
        query_rank=keys.optional_count("q_lora_rank"),
        is_interleaved=is_interleaved,
        has_bias=keys.flag("attention_bias", False),
    )
    scale = latent.shape.query_dim**-0.5 * parse_score_factor(keys)
    dense = LayerConfig(
        rope=parse_rope(keys, latent.shape.rope_dim),
        attention=AttentionKind(scoring=Scoring(scale=scale)),
    )
    expert_width = keys.count("moe_intermediate_size")
    moe = MoeConfig(
        routing=routing,
        expert_width=expert_width,
        shared_width=keys.count("n_shared_experts", 0, least=0) * expert_width,
        gating=Gating(activation=keys.choice("hidden_act", GATES)),
    )
    num_dense = keys.count("first_k_dense_replace", 0, least=0)
    sparse = replace(dense, moe=moe)
    layers = [dense if i < num_dense else sparse for i in range(keys.count("num_hidden_layers"))]
    config = parse_decoder(keys, latent.heads, layers, GATES)
    return replace(config, latent=latent, has_ffn_bias=keys.flag("mlp_bias", False))


def build(config: ModelConfig) -> Decoder:
    width, eps, latent = config.hidden_size, config.norm_eps, config.latent
    assert latent is not None

    def new_block(layer: LayerConfig) -> nn.Module:
        return Block(
            attn_norm=AddRmsNorm(width, eps),
            attn=LatentAttention(width, latent, layer.attention),
            ffn_norm=AddRmsNorm(width, eps),
            ffn=feed_forward_of(config, layer),
        )

    return Decoder(config, new_block, AddRmsNorm(width, eps))


LATENT_ATTENTION = {
    "blocks.{i}.attn.q.weight": ("model.layers.{i}.self_attn.q_proj.weight",),
    "blocks.{i}.attn.q_a.weight": ("model.layers.{i}.self_attn.q_a_proj.weight",),
    "blocks.{i}.attn.q_a.bias": ("model.layers.{i}.self_attn.q_a_proj.bias",),
    "blocks.{i}.attn.q_a_norm.weight": ("model.layers.{i}.self_attn.q_a_layernorm.weight",),
    "blocks.{i}.attn.q_b.weight": ("model.layers.{i}.self_attn.q_b_proj.weight",),
    "blocks.{i}.attn.kv_a.weight": ("model.layers.{i}.self_attn.kv_a_proj_with_mqa.weight",),
    "blocks.{i}.attn.kv_a.bias": ("model.layers.{i}.self_attn.kv_a_proj_with_mqa.bias",),
    "blocks.{i}.attn.kv_a_norm.weight": ("model.layers.{i}.self_attn.kv_a_layernorm.weight",),
    "blocks.{i}.attn.kv_b.weight": ("model.layers.{i}.self_attn.kv_b_proj.weight",),
}
EXPERTS = {
    **qwen2_moe.EXPERTS,
    "blocks.{i}.ffn.router.correction": ("model.layers.{i}.mlp.gate.e_score_correction_bias",),
    "blocks.{i}.ffn.shared.gate_up.weight": (
        "model.layers.{i}.mlp.shared_experts.gate_proj.weight",
        "model.layers.{i}.mlp.shared_experts.up_proj.weight",
    ),
    "blocks.{i}.ffn.shared.down.weight": ("model.layers.{i}.mlp.shared_experts.down_proj.weight",),
}
CHECKPOINT = {
    **{ours: theirs for ours, theirs in llama.CHECKPOINT.items() if ".attn.qkv." not in ours},
    **LATENT_ATTENTION,
    **EXPERTS,
}
"""All weights; which of them a model has depends on its configuration."""
DEFAULTS = {
    "hidden_act": "silu",
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}

DEEPSEEK_V2 = Family(
    description="DeepSeek V2 and V2-Lite: latent attention, routed and shared experts",
    parse=parse,
    build=build,
    checkpoint=CHECKPOINT,
    other_names=(mixtral.FUSED,),
    defaults={**DEFAULTS, "eos_token_id": 2, "n_routed_experts": 64, "n_shared_experts": 2},
    must_be={
        "moe_layer_freq": (1,),
        "norm_topk_prob": (False, None),
        "scoring_func": ("softmax",),
    },
)
