"""Llama 2, 3 and 3.x: RMS norm, rotary positions, grouped-query attention, SwiGLU."""

from __future__ import annotations

from baton.engine.checkpoint.config import ModelConfig
from baton.engine.layers.attention import Attention
from baton.engine.layers.feed_forward import SwiGlu
from baton.engine.models.decoder import Block, Decoder
from baton.engine.models.family import Family


def build(config: ModelConfig) -> Decoder:
    width = config.hidden_size

    def new_block() -> Block:
        return Block(
            width,
            config.rms_norm_eps,
            attention=Attention(width, config.heads),
            ffn=SwiGlu(width, config.intermediate_size),
        )

    return Decoder(config, new_block)


CHECKPOINT = {
    "embed.weight": ("model.embed_tokens.weight",),
    "blocks.{i}.attn_norm.weight": ("model.layers.{i}.input_layernorm.weight",),
    "blocks.{i}.attn.qkv.weight": (
        "model.layers.{i}.self_attn.q_proj.weight",
        "model.layers.{i}.self_attn.k_proj.weight",
        "model.layers.{i}.self_attn.v_proj.weight",
    ),
    "blocks.{i}.attn.out.weight": ("model.layers.{i}.self_attn.o_proj.weight",),
    "blocks.{i}.ffn_norm.weight": ("model.layers.{i}.post_attention_layernorm.weight",),
    "blocks.{i}.ffn.gate_up.weight": (
        "model.layers.{i}.mlp.gate_proj.weight",
        "model.layers.{i}.mlp.up_proj.weight",
    ),
    "blocks.{i}.ffn.down.weight": ("model.layers.{i}.mlp.down_proj.weight",),
    "norm.weight": ("model.norm.weight",),
    "head.weight": ("lm_head.weight",),
}

LLAMA = Family(build=build, checkpoint=CHECKPOINT, defaults={"eos_token_id": 2})
