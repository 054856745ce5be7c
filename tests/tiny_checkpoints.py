"""Model folders of a few thousand random weights, and what transformers makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB_SIZE = 96
EOS = 1

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
    return _make(LlamaForCausalLM, LlamaConfig, folder, overrides)


def make_qwen3(folder: Path, **overrides: Any) -> Path:
    """Save a random Qwen3ForCausalLM; options as for `make_llama`."""
    return _make(Qwen3ForCausalLM, Qwen3Config, folder, overrides)


def _make(model_type: Any, config_type: Any, folder: Path, overrides: dict[str, Any]) -> Path:
    options = dict(overrides)
    seed = options.pop("seed", 0)
    dtype = options.pop("dtype", torch.float32)
    max_shard_size = options.pop("max_shard_size", "1GB")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_type(config_type(**{**TINY, **options}))
        for name, parameter in model.named_parameters():
            if "norm" in name:  # ones would hide a norm that is never applied
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def transformers_logits(folder: Path, prompt: Sequence[int]) -> torch.Tensor:
    """Logits [T, V] at all positions of a prompt, in float32."""
    with torch.inference_mode():
        logits: torch.Tensor = _reference(folder)(torch.tensor([list(prompt)])).logits[0]
    return logits


def transformers_greedy(
    folder: Path, prompts: Sequence[Sequence[int]], max_tokens: int
) -> list[list[int]]:
    """The greedy continuation of each prompt, in float32, ended by EOS (which it includes)."""
    model = _reference(folder)
    outputs: list[list[int]] = []
    with torch.inference_mode():
        for prompt in prompts:
            output: list[int] = []
            cache = None
            new = torch.tensor([list(prompt)])
            while len(output) < max_tokens and EOS not in output:
                step = model(new, past_key_values=cache, use_cache=True)
                cache = step.past_key_values
                new = step.logits[:, -1:].argmax(-1)
                output.append(int(new))
            outputs.append(output)
    return outputs


def _reference(folder: Path) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()
