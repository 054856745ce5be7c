"""The same model run by `transformers`, with a static cache, compiled with CUDA graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from bench.gpu.clock import Ceilings
from bench.gpu.engine import Row, median_seconds


@torch.inference_mode()
def transformers_rows(
    config: Mapping[str, Any], device: str, weight_bytes: float, ceilings: Ceilings
) -> list[Row]:
    """A decode step of one request with a context of 2k. Raises whatever transformers raises."""
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    context = 2048
    made = LlamaConfig(**{k: v for k, v in config.items() if k != "torch_dtype"})
    made.dtype = torch.bfloat16
    with torch.device(device):
        model: Any = LlamaForCausalLM(made)
    model = model.to(torch.bfloat16).eval()
    cache = StaticCache(config=made, max_cache_len=context + 64)
    token = torch.zeros(1, 1, dtype=torch.int64, device=device)
    model(torch.zeros(1, context - 1, dtype=torch.int64, device=device), past_key_values=cache)
    step: Any = torch.compile(model, mode="reduce-overhead", fullgraph=False)
    position = torch.tensor([context - 1], device=device)

    def run() -> float:
        found = step(token, past_key_values=cache, cache_position=position)
        return float(found.logits[0, -1, 0])

    kv_bytes = 2.0 * config["num_hidden_layers"] * config["num_key_value_heads"] * 128 * 2 * context
    least = (weight_bytes + kv_bytes) / ceilings.bytes
    return [
        Row("transformers, compiled, static cache, decode, 1 x 2048", median_seconds(run), least)
    ]
