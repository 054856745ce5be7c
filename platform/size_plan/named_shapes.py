"""Shapes of well-known models, as their authors' `config.json` gives them, so nothing is fetched.

What does not change sizes or times is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
BF16 = {"torch_dtype": "bfloat16", "hidden_act": "silu", "rms_norm_eps": 1e-5}
LLAMA_3 = {
    **BF16,
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128_256,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rope_theta": 500_000.0,
    "rope_scaling": LLAMA_3_ROPE,
}
QWEN_3 = {
    **BF16,
    "vocab_size": 151_936,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rope_theta": 1_000_000.0,
}
QWEN_3_MOE = {
    **QWEN_3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


@dataclass(frozen=True, slots=True)
class NamedShape:
    model: str
    """The model's id at Hugging Face."""
    config: Mapping[str, Any]


NAMED_SHAPES: Mapping[str, NamedShape] = {
    "llama-2-70b": NamedShape(
        "meta-llama/Llama-2-70b-chat-hf",
        {
            **BF16,
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 32_000,
            "hidden_size": 8192,
            "intermediate_size": 28_672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "max_position_embeddings": 4096,
        },
    ),
    "llama-3.1-8b": NamedShape(
        "meta-llama/Llama-3.1-8B-Instruct",
        {
            **LLAMA_3,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
        },
    ),
    "llama-3.3-70b": NamedShape(
        "meta-llama/Llama-3.3-70B-Instruct",
        {
            **LLAMA_3,
            "hidden_size": 8192,
            "intermediate_size": 28_672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
        },
    ),
    "llama-3.1-405b": NamedShape(
        "meta-llama/Llama-3.1-405B-Instruct",
        {
            **LLAMA_3,
            "hidden_size": 16_384,
            "intermediate_size": 53_248,
            "num_hidden_layers": 126,
            "num_attention_heads": 128,
        },
    ),
    "qwen3-8b": NamedShape(
        "Qwen/Qwen3-8B",
        {
            **QWEN_3,
            "architectures": ["Qwen3ForCausalLM"],
            "hidden_size": 4096,
            "intermediate_size": 12_288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        },
    ),
    "qwen3-32b": NamedShape(
        "Qwen/Qwen3-32B",
        {
            **QWEN_3,
            "architectures": ["Qwen3ForCausalLM"],
            "hidden_size": 5120,
            "intermediate_size": 25_600,
            "num_hidden_layers": 64,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
        },
    ),
    "qwen3-30b-a3b": NamedShape(
        "Qwen/Qwen3-30B-A3B",
        {
            **QWEN_3_MOE,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
        },
    ),
    "qwen3-235b-a22b": NamedShape(
        "Qwen/Qwen3-235B-A22B",
        {
            **QWEN_3_MOE,
            "hidden_size": 4096,
            "intermediate_size": 12_288,
            "moe_intermediate_size": 1536,
            "num_hidden_layers": 94,
            "num_attention_heads": 64,
        },
    ),
    "mixtral-8x7b": NamedShape(
        "mistralai/Mixtral-8x7B-Instruct-v0.1",
        {
            **BF16,
            "architectures": ["MixtralForCausalLM"],
            "vocab_size": 32_000,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32_768,
            "rope_theta": 1_000_000.0,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
    "deepseek-v3": NamedShape(
        "deepseek-ai/DeepSeek-V3",
        {
            **BF16,
            "architectures": ["DeepseekV3ForCausalLM"],
            "vocab_size": 129_280,
            "hidden_size": 7168,
            "intermediate_size": 18_432,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 61,
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "n_shared_experts": 1,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "n_group": 8,
            "topk_group": 4,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "first_k_dense_replace": 3,
            "moe_layer_freq": 1,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "max_position_embeddings": 163_840,
            "rope_theta": 10_000.0,
            "rope_scaling": {
                "type": "yarn",
                "factor": 40,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
            },
        },
    ),
}
