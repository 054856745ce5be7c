"""Heads of random weights, and what the published formulas make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from tests.tiny_checkpoints import TINY, VOCAB_SIZE
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

NUM_DRAFTED = 3
NUM_IDS = 40
MASK_TOKEN = 9


class EagleReference:
    """A head of either kind of random weights, out of the parts that transformers has."""

    def __init__(
        self, kind: Literal[1, 3], target: Path, folder: Path, *, is_parallel: bool = False
    ) -> None:
        """`is_parallel`: with a second layer and with what masks are, as P-EAGLE has them."""
        torch.manual_seed(5)
        self.kind = kind
        self.model = AutoModelForCausalLM.from_pretrained(target)
        config = LlamaConfig(**{**TINY, "num_hidden_layers": 1})
        config._attn_implementation = "eager"
        width = config.hidden_size
        self.layer = LlamaDecoderLayer(config, 0)
        self.rotary = LlamaRotaryEmbedding(config)
        self.tensors: dict[str, Tensor] = {}
        for name, weight in self.layer.named_parameters():
            is_wide = kind == 3 and any(f"{part}_proj" in name for part in "qkv")
            shape = (len(weight), 2 * width) if is_wide else weight.shape
            weight.data = torch.rand(shape) + 0.5 if weight.dim() == 1 else torch.randn(shape) / 5
            self.tensors[f"layers.0.{name}"] = weight.data
        num_inputs = 2 if kind == 1 else 3
        self.tensors["fc.weight"] = torch.randn(width, num_inputs * width) / 4
        if kind == 1:
            setattr(self.layer, "input_layernorm", torch.nn.Identity())  # noqa: B010
            del self.tensors["layers.0.input_layernorm.weight"]
            self.tensors["fc.bias"] = torch.randn(width)
        else:
            self.tensors = {
                name.replace("layers.0.", "midlayer."): weight
                for name, weight in self.tensors.items()
            }
            self.tensors["midlayer.hidden_norm.weight"] = torch.rand(width) + 0.5
            self.tensors["norm.weight"] = torch.rand(width) + 0.5
            self.tensors["lm_head.weight"] = torch.randn(NUM_IDS, width)
            self.ids = torch.randperm(VOCAB_SIZE)[:NUM_IDS].sort().values
            self.tensors["d2t"] = self.ids - torch.arange(NUM_IDS)
            self.tensors["t2d"] = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
        self.second: LlamaDecoderLayer | None = None
        raw = {**config.to_dict(), "architectures": ["LlamaForCausalLM"]}
        if is_parallel:
            self.second = LlamaDecoderLayer(config, 0)
            for name, weight in self.second.named_parameters():
                weight.data = torch.rand(len(weight)) + 0.5 if weight.dim() == 1 else weight.data
                self.tensors[f"layers.1.{name}"] = weight.data
            self.tensors["mask_hidden"] = torch.randn(1, 3 * width)
            raw |= {"num_hidden_layers": 2, "ptd_token_id": MASK_TOKEN}
        folder.mkdir()
        save_file(self.tensors, folder / "model.safetensors", metadata={"format": "pt"})
        raw["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]}
        (folder / "config.json").write_text(json.dumps(raw))

    def features(self, tokens: list[int]) -> Tensor:
        found = self.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        if self.kind == 1:
            last: Tensor = found[-1]
            return last
        return torch.cat((found[0], found[1], found[1]), dim=-1) @ self.tensors["fc.weight"].T

    def step(self, behind: list[int], hidden: Tensor) -> Tensor:
        embedded = self.model.model.embed_tokens(torch.tensor([behind]))
        positions = self.rotary(hidden, torch.arange(len(behind)).unsqueeze(0))
        mask = torch.full((len(behind), len(behind)), -torch.inf).triu(1)[None, None]
        inputs = {"position_embeddings": positions, "attention_mask": mask}
        if self.kind == 1:
            both = torch.cat((embedded, hidden), dim=-1)
            x = functional.linear(both, self.tensors["fc.weight"], self.tensors["fc.bias"])
            found = self.layer(x, **inputs)
            out: Tensor = found[0] if isinstance(found, tuple) else found
            return out
        normed = self._normed(hidden, "midlayer.hidden_norm")
        both = torch.cat((self.layer.input_layernorm(embedded), normed), dim=-1)
        x = hidden + self.layer.self_attn(hidden_states=both, **inputs)[0]
        mixed: Tensor = x + self.layer.mlp(self.layer.post_attention_layernorm(x))
        if self.second is None:
            return mixed
        found = self.second(mixed, **inputs)
        last: Tensor = found[0] if isinstance(found, tuple) else found
        return last

    def best(self, out: Tensor) -> int:
        if self.kind == 1:
            return int(self.model.lm_head(out).argmax())
        logits = self._normed(out, "norm") @ self.tensors["lm_head.weight"].T
        return int(self.ids[logits.argmax()])

    def _normed(self, x: Tensor, name: str) -> Tensor:
        weight = self.tensors[f"{name}.weight"]
        return functional.rms_norm(x, weight.shape, weight, self.model.config.rms_norm_eps)


def make_medusa_heads(folder: Path, *, has_own_heads: bool) -> dict[str, Tensor]:
    """Random ones."""
    torch.manual_seed(7)
    width = TINY["hidden_size"]
    tensors: dict[str, Tensor] = {}
    for number in range(NUM_DRAFTED):
        tensors[f"{number}.0.linear.weight"] = torch.randn(width, width) / 2
        tensors[f"{number}.0.linear.bias"] = torch.randn(width)
        if has_own_heads:
            tensors[f"{number}.1.weight"] = torch.randn(VOCAB_SIZE, width)
    folder.mkdir()
    torch.save(tensors, folder / "medusa_lm_head.pt")
    (folder / "config.json").write_text(
        json.dumps({"medusa_num_heads": NUM_DRAFTED, "medusa_num_layers": 1})
    )
    return tensors
