"""Tiny checkpoints with a head for labels, and what transformers makes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

LABELS = ("bad", "so-so", "good")


def as_classifier(folder: Path, *, labels: Sequence[str] = LABELS, **config: Any) -> Path:
    """The model of `folder`, one that generates, with a random head for labels in place of its own.

    `config` are further keys of its config.json.
    """
    path = folder / "config.json"
    described = json.loads(path.read_text())
    (generating,) = described["architectures"]
    stem = generating.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    stem = {"Gemma3": "Gemma3Text"}.get(stem, stem)
    described |= {
        "architectures": [f"{stem}ForSequenceClassification"],
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
        **config,
    }
    path.write_text(json.dumps(described))
    tensors = load_file(folder / "model.safetensors")
    width = described.get("hidden_size") or described["n_embd"]
    score = torch.randn(len(labels), width, generator=torch.Generator().manual_seed(3))
    tensors.pop("lm_head.weight", None)
    save_file(
        {**tensors, "score.weight": score}, folder / "model.safetensors", metadata={"format": "pt"}
    )
    return folder


def transformers_label_logits(folder: Path, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Logits [labels] of each prompt, in float32."""
    from transformers import AutoModelForSequenceClassification  # seconds

    model: Any = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    model.config.pad_token_id = None  # prompts may hold any token, and come one by one
    with torch.inference_mode():
        return [model(torch.tensor([list(prompt)])).logits[0] for prompt in prompts]
