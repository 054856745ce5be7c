"""Models of experts as their authors published them: what is read of their `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from baton.engine.checkpoint.active_parameters import active_parameters
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.registry import family_of
from baton.kernels.paging.window import Chunks

MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "vocab_size": 32000,
}

QWEN_1_5: dict[str, Any] = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "max_position_embeddings": 8192,
    "max_window_layers": 21,
    "moe_intermediate_size": 1408,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 16,
    "rope_theta": 1000000.0,
    "shared_expert_intermediate_size": 5632,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "vocab_size": 151936,
}

QWEN_3: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rope_theta": 1000000.0,
    "use_sliding_window": False,
    "vocab_size": 151936,
}

SCOUT: dict[str, Any] = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "text_config": {
        "attention_chunk_size": 8192,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "interleave_moe_layer_step": 1,
        "max_position_embeddings": 10485760,
        "no_rope_layers": [],
        "num_attention_heads": 40,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "rope_scaling": {
            "factor": 16.0,
            "high_freq_factor": 1.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "use_qk_norm": True,
        "vocab_size": 202048,
    },
}


def parse(raw: Mapping[str, Any]) -> ModelConfig:
    return family_of(raw["architectures"][0]).parse_config(raw)


@pytest.mark.parametrize(
    ("raw", "billions", "active_billions"),
    [(MIXTRAL, 46.7, 12.9), (QWEN_1_5, 14.3, 2.7), (QWEN_3, 30.5, 3.3), (SCOUT, 107.8, 17.2)],
    ids=["Mixtral 8x7B", "Qwen1.5 MoE A2.7B", "Qwen3 30B A3B", "Llama 4 Scout, text"],
)
def test_a_published_model_has_as_many_parameters_as_its_authors_say(
    raw: dict[str, Any], billions: float, active_billions: float
) -> None:
    config = parse(raw)

    model = family_of(config.architecture).build(config)

    total = sum(parameter.numel() for parameter in model.parameters())
    assert total / 1e9 == pytest.approx(billions, abs=0.06)
    assert active_parameters(model) / 1e9 == pytest.approx(active_billions, abs=0.06)


def test_every_fourth_layer_of_scout_sees_all_and_has_no_positions() -> None:
    layers = parse(SCOUT).layers

    assert [layer.rope is None for layer in layers] == [False, False, False, True] * 12
    assert {layer.attention.window for layer in layers[::4]} == {Chunks(8192)}
    assert {layer.attention.window for layer in layers[3::4]} == {None}
    assert all(layer.moe is not None for layer in layers)


def test_shares_add_up_to_one_where_the_authors_want_them_to() -> None:
    routings = [
        layer.moe.routing
        for raw in (MIXTRAL, QWEN_1_5, QWEN_3, SCOUT)
        for layer in parse(raw).layers[:1]
        if layer.moe is not None
    ]

    assert [routing.is_normalised for routing in routings] == [True, False, True, False]


def test_what_mixtral_leaves_out_is_as_in_its_first_models() -> None:
    keys = ("rope_theta", "sliding_window", "num_local_experts", "num_experts_per_tok")

    assert parse({key: MIXTRAL[key] for key in MIXTRAL if key not in keys}) == parse(MIXTRAL)
