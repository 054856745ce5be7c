"""LoRA adapters that PEFT makes, of tiny random checkpoints, and what it answers with them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tests.kept_answers import copy_kept, digest, kept_tensors
from torch import Tensor

SOURCE = hashlib.sha256(Path(__file__).read_bytes()).hexdigest(), version("peft")
"""What is kept was made by this very file."""
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")


def make_adapter(
    base: Path, folder: Path, modules: Sequence[str], *, seed: int = 0, **settings: Any
) -> Path:
    """A random adapter of rank 4 that changes the answers, in `folder`."""
    settings = {"r": 4, "lora_alpha": 12, "target_modules": list(modules), **settings}
    key = (*SOURCE, "adapter", digest(base), sorted(settings.items()), seed)

    def make(target: Path) -> None:
        from peft import LoraConfig, get_peft_model  # seconds, which only a first run has to spend

        torch.manual_seed(seed)
        made = get_peft_model(_base(base), LoraConfig(init_lora_weights=False, **settings))
        for name, parameter in made.named_parameters():
            if "lora_" in name:
                parameter.data.normal_(0, 0.3)
        made.save_pretrained(str(target))

    return copy_kept(key, make, folder)


def peft_logits(base: Path, adapter: Path, prompt: Sequence[int]) -> Tensor:
    """Logits [T, V] at all positions of a prompt, float32."""
    key = (*SOURCE, "logits", digest(base), digest(adapter), list(prompt))

    def compute() -> dict[str, Tensor]:
        with torch.inference_mode():
            logits = _adapted(base, adapter)(torch.tensor([list(prompt)])).logits
            return {"logits": logits[0].clone()}

    return kept_tensors(key, compute)["logits"]


def peft_greedy(base: Path, adapter: Path, prompt: Sequence[int], max_tokens: int) -> list[int]:
    """The greedy continuation of a prompt in float32, EOS being a token like others."""
    key = (*SOURCE, "greedy", digest(base), digest(adapter), list(prompt), max_tokens)

    def compute() -> dict[str, Tensor]:
        model, tokens = _adapted(base, adapter), list(prompt)
        with torch.inference_mode():
            for _ in range(max_tokens):
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        return {"output": torch.tensor(tokens[len(prompt) :])}

    output: list[int] = kept_tensors(key, compute)["output"].tolist()
    return output


def _adapted(base: Path, adapter: Path) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(_base(base), adapter).eval()


def _base(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
