"""Qwen 3, dense: Llama with an RMS norm over each head of the queries and keys."""

from __future__ import annotations

from baton.engine.checkpoint.config import ModelConfig
from baton.engine.layers.attention import Attention
from baton.engine.layers.feed_forward import SwiGlu
from baton.engine.models import llama
from baton.engine.models.decoder import Block, Decoder
from baton.engine.models.family import Family


def build(config: ModelConfig) -> Decoder:
    width, eps = config.hidden_size, config.rms_norm_eps

    def new_block() -> Block:
        return Block(
            width,
            eps,
            attention=Attention(width, config.heads, qk_norm_eps=eps),
            ffn=SwiGlu(width, config.intermediate_size),
        )

    return Decoder(config, new_block)


CHECKPOINT = {
    **llama.CHECKPOINT,
    "blocks.{i}.attn.q_norm.weight": ("model.layers.{i}.self_attn.q_norm.weight",),
    "blocks.{i}.attn.k_norm.weight": ("model.layers.{i}.self_attn.k_norm.weight",),
}

QWEN3 = Family(
    build=build,
    checkpoint=CHECKPOINT,
    defaults={"head_dim": 128, "max_position_embeddings": 32768, "num_key_value_heads": 32},
)
