"""Model folders of a few thousand random weights, and what transformers makes of them.

What is particular about a family is made to matter: windows are shorter than prompts, scores reach
their caps, biases and norms are not neutral.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tests.kept_answers import copy_kept, digest, kept_tensors

SOURCE = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
"""What is kept was made by this very file."""

VOCAB_SIZE = 96
EOS = 1
WINDOW = 9

TINY: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": EOS,
    "initializer_range": 0.4,  # large, so that the next tokens are clearly ranked
}

LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def make_llama(folder: Path, **overrides: Any) -> Path:
    """Save a random LlamaForCausalLM; `seed`, `dtype` and `max_shard_size` are options too."""
    return _make("LlamaForCausalLM", "LlamaConfig", folder, {**TINY, **overrides})


def make_mistral(folder: Path, **overrides: Any) -> Path:
    options = {**TINY, "sliding_window": WINDOW, **overrides}
    return _make("MistralForCausalLM", "MistralConfig", folder, options)


def make_qwen2(folder: Path, **overrides: Any) -> Path:
    """The first layer sees all, the second a window."""
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    options = {**_without(TINY, "head_dim"), **windows, **overrides}
    return _make("Qwen2ForCausalLM", "Qwen2Config", folder, options)


def make_qwen3(folder: Path, **overrides: Any) -> Path:
    return _make("Qwen3ForCausalLM", "Qwen3Config", folder, {**TINY, **overrides})


def make_gemma2(folder: Path, **overrides: Any) -> Path:
    caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 8.0}
    options = {**TINY, **caps, "sliding_window": WINDOW, "query_pre_attn_scalar": 5, **overrides}
    return _make("Gemma2ForCausalLM", "Gemma2Config", folder, options)


def make_gemma3(folder: Path, **overrides: Any) -> Path:
    """Two layers with windows, then one that sees all, by angles of its own."""
    options = {
        **TINY,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 5,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
        **overrides,
    }
    return _make("Gemma3ForCausalLM", "Gemma3TextConfig", folder, options)


def make_phi3(folder: Path, **overrides: Any) -> Path:
    options = {
        **_without(TINY, "head_dim"),
        "sliding_window": WINDOW,
        "pad_token_id": 0,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
        **overrides,
    }
    return _make("Phi3ForCausalLM", "Phi3Config", folder, options)


def make_gpt2(folder: Path, **overrides: Any) -> Path:
    options = {
        "vocab_size": VOCAB_SIZE,
        "n_embd": 32,
        "n_inner": 48,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 512,
        "bos_token_id": 0,
        "eos_token_id": EOS,
        "initializer_range": 0.4,
        **overrides,
    }
    return _make("GPT2LMHeadModel", "GPT2Config", folder, options)


def make_falcon(folder: Path, **overrides: Any) -> Path:
    """As the 7B model is: one KV head, one norm."""
    keys = ("head_dim", "intermediate_size", "num_key_value_heads")
    options = {**_without(TINY, *keys), "ffn_hidden_size": 48, **overrides}
    return _make("FalconForCausalLM", "FalconConfig", folder, options)


def make_new_falcon(folder: Path, **overrides: Any) -> Path:
    """As the 40B model is: several KV heads, two norms."""
    return make_falcon(folder, new_decoder_architecture=True, num_kv_heads=2, **overrides)


def make_mixtral(folder: Path, **overrides: Any) -> Path:
    experts = {"num_local_experts": 5, "num_experts_per_tok": 2}
    options = {**TINY, **experts, "sliding_window": WINDOW, **overrides}
    return _make("MixtralForCausalLM", "MixtralConfig", folder, options)


EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
}


def make_qwen2_moe(folder: Path, **overrides: Any) -> Path:
    options = {**_without(TINY, "head_dim"), **EXPERTS, **overrides}
    options.setdefault("shared_expert_intermediate_size", 28)
    return _make("Qwen2MoeForCausalLM", "Qwen2MoeConfig", folder, options)


def make_qwen3_moe(folder: Path, **overrides: Any) -> Path:
    """The first of three layers is dense."""
    layers = {"num_hidden_layers": 3, "mlp_only_layers": [0]}
    options = {**TINY, **EXPERTS, **layers, "norm_topk_prob": True, **overrides}
    return _make("Qwen3MoeForCausalLM", "Qwen3MoeConfig", folder, options)


def make_gpt_oss(folder: Path, **overrides: Any) -> Path:
    """A window, then a layer that sees all; gates that reach their limit."""
    options = {
        **TINY,
        "intermediate_size": 64,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "sliding_window": WINDOW,
        "swiglu_limit": 1.5,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
        **overrides,
    }
    return _make("GptOssForCausalLM", "GptOssConfig", folder, options)


LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
    "num_hidden_layers": 3,
}
DEEPSEEK_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "mscale": 0.7,
    "mscale_all_dim": 1.1,
}


def make_deepseek_v2(folder: Path, **overrides: Any) -> Path:
    """As the large one is: queries of a latent of their own, experts by group."""
    options = {
        **_without(TINY, "head_dim"),
        **LATENT,
        "topk_method": "group_limited_greedy",
        "rope_parameters": DEEPSEEK_YARN,
        **overrides,
    }
    return _make("DeepseekV2ForCausalLM", "DeepseekV2Config", folder, options)


def make_deepseek_v2_lite(folder: Path, **overrides: Any) -> Path:
    return make_deepseek_v2(folder, q_lora_rank=None, topk_method="greedy", **overrides)


def make_deepseek_v3(folder: Path, **overrides: Any) -> Path:
    options = {
        **_without(TINY, "head_dim"),
        **LATENT,
        "rope_parameters": DEEPSEEK_YARN,
        **overrides,
    }
    return _make("DeepseekV3ForCausalLM", "DeepseekV3Config", folder, options)


INDEXED: dict[str, Any] = {
    **LATENT,
    "index_n_heads": 16,  # few would often all find nothing: tokens as bad as each other
    "index_head_dim": 12,
    "index_topk": 5,
    "num_hidden_layers": 4,
}


def make_deepseek_v32(folder: Path, **overrides: Any) -> Path:
    options = {
        **_without(TINY, "head_dim"),
        **INDEXED,
        "rope_parameters": DEEPSEEK_YARN,
        **overrides,
    }
    return _make("DeepseekV32ForCausalLM", "DeepseekV32Config", folder, options)


def make_glm_moe_dsa(folder: Path, **overrides: Any) -> Path:
    """Layers with an index around two that share one's choice."""
    options = {
        **_without(TINY, "head_dim"),
        **INDEXED,
        "indexer_types": ["full", "shared", "shared", "full"],
        **overrides,
    }
    return _make("GlmMoeDsaForCausalLM", "GlmMoeDsaConfig", folder, options)


SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
COMPRESSED: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", SPARSE, HEAVY, SPARSE],
    "compress_rates": {SPARSE: 4, HEAVY: 6},
    "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"],
    "sliding_window": WINDOW,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 20,
    "o_groups": 2,
    "o_lora_rank": 12,
    "index_n_heads": 16,  # few would often all find nothing: entries as bad as each other
    "index_head_dim": 8,
    "index_topk": 3,
    "hc_sinkhorn_iters": 5,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "swiglu_limit": 1.5,
    "initializer_range": 0.25,
}


def make_deepseek_v4(folder: Path, **overrides: Any) -> Path:
    """A layer that sees a window, and two with entries that are chosen around one without."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    options = {**TINY, **COMPRESSED, "rope_parameters": yarn, "seed": 4, **overrides}
    del options["intermediate_size"]
    return _make("DeepseekV4ForCausalLM", "DeepseekV4Config", folder, options)


def make_llama4(folder: Path, **overrides: Any) -> Path:
    """Three layers that see chunks, the second of them dense; the last has no positions."""
    options = {
        **TINY,
        "num_hidden_layers": 4,
        "num_local_experts": 5,
        "moe_layers": [0, 2, 3],
        "intermediate_size_mlp": 56,
        "attention_chunk_size": WINDOW,
        "floor_scale": 7,
        "attn_scale": 0.4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
        **overrides,
    }
    return _make("Llama4ForCausalLM", "Llama4TextConfig", folder, options)


FAMILIES: Mapping[str, Callable[..., Path]] = {
    "llama": make_llama,
    "mistral": make_mistral,
    "qwen2": make_qwen2,
    "qwen3": make_qwen3,
    "gemma2": make_gemma2,
    "gemma3": make_gemma3,
    "phi3": make_phi3,
    "gpt2": make_gpt2,
    "falcon": make_falcon,
    "new falcon": make_new_falcon,
    "mixtral": make_mixtral,
    "qwen2 moe": make_qwen2_moe,
    "qwen3 moe": make_qwen3_moe,
    "llama4": make_llama4,
    "gpt-oss": make_gpt_oss,
    "deepseek v2": make_deepseek_v2,
    "deepseek v2 lite": make_deepseek_v2_lite,
    "deepseek v3": make_deepseek_v3,
    "deepseek v3.2": make_deepseek_v32,
    "glm moe dsa": make_glm_moe_dsa,
    "deepseek v4": make_deepseek_v4,
}


def _without(options: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in keys}


def _make(model_type: str, config_type: str, folder: Path, options: dict[str, Any]) -> Path:
    key = (SOURCE, model_type, config_type, options)
    return copy_kept(key, lambda target: _save(model_type, config_type, target, options), folder)


def _save(model_type: str, config_type: str, folder: Path, options: dict[str, Any]) -> None:
    import transformers  # seconds, which only a first run has to spend

    options = dict(options)
    seed = options.pop("seed", 0)
    dtype = options.pop("dtype", torch.float32)
    max_shard_size = options.pop("max_shard_size", "1GB")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = getattr(transformers, config_type)(**options)
        model = getattr(transformers, model_type)(config)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.3)
            elif name.endswith("sinks"):
                torch.nn.init.normal_(parameter, mean=3, std=3)  # as large as scores are
            elif parameter.dim() == 1:
                _spread_norm(parameter)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                torch.nn.init.normal_(buffer, std=0.3)
            elif name.endswith("tid2eid"):
                choices = torch.rand(len(buffer), options["n_routed_experts"]).argsort(dim=1)
                buffer.copy_(choices[:, : buffer.shape[1]])
    model.to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)


def _spread_norm(weight: torch.nn.Parameter) -> None:
    """Ones would hide a norm that is not applied; equal signs let a tied head echo its input."""
    neutral = float(weight.detach()[0])  # 1, or 0 where the weight is stored less 1
    signs = torch.randint(0, 2, weight.shape) * 2 - 1
    weight.data = signs * (torch.rand(weight.shape) + 0.5) + (neutral - 1)


def transformers_logits(
    folder: Path, prompt: Sequence[int], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Logits [T, V] at all positions of a prompt."""
    key = (SOURCE, "logits", digest(folder), list(prompt), dtype)

    def compute() -> dict[str, torch.Tensor]:
        with torch.inference_mode():
            model = _reference(folder, dtype)
            return {"logits": model(torch.tensor([list(prompt)])).logits[0].clone()}

    return kept_tensors(key, compute)["logits"]


def transformers_greedy(
    folder: Path, prompts: Sequence[Sequence[int]], max_tokens: int
) -> list[list[int]]:
    """The greedy continuation of each prompt, in float32, ended by EOS (which it includes)."""
    key = (SOURCE, "greedy", digest(folder), [list(prompt) for prompt in prompts], max_tokens)

    def compute() -> dict[str, torch.Tensor]:
        model = _reference(folder, torch.float32)
        outputs = [_greedy(model, prompt, max_tokens) for prompt in prompts]
        return {str(number): torch.tensor(output) for number, output in enumerate(outputs)}

    kept = kept_tensors(key, compute)
    return [kept[str(number)].tolist() for number in range(len(prompts))]


def _greedy(model: Any, prompt: Sequence[int], max_tokens: int) -> list[int]:
    output: list[int] = []
    cache = None
    new = torch.tensor([list(prompt)])
    with torch.inference_mode():
        while len(output) < max_tokens and EOS not in output:
            step = model(new, past_key_values=cache, use_cache=True)
            cache = step.past_key_values
            new = step.logits[:, -1:].argmax(-1)
            output.append(int(new))
    return output


def _reference(folder: Path, dtype: torch.dtype) -> Any:
    """With plain attention: the fused kinds cannot cap scores."""
    from transformers import AutoModelForCausalLM  # seconds, which only a first run has to spend

    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager"
    )
    return model.eval()
