"""Random checkpoints for comparing engines: as Hugging Face folders, and as GGUF.

Speed depends only on shapes. Every token is a word of its own, " w<id>", so that a client can count
tokens in text.

    FOLDER/<name>/                  config.json, model.safetensors, tokenizer.json
    FOLDER/<name>.gguf              the same weights, made by gguf_writer.py
    FOLDER/<name>-q8_0.gguf         by llama-quantize
    FOLDER/<name>-openvino-<kind>/  by optimum-intel
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

WORD = " w"
"""The start of nearly every token's text; no token has it twice."""
LETTERS = ("Ġ", *"abcdefghijklmnopqrstuvwxyz0123456789")
SPECIAL = ("<s>", "</s>")
MAX_POSITIONS = 8192
SCALE = 0.02
GGUF_WRITER = Path(__file__).with_name("gguf_writer.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    name: str
    architecture: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    vocab_size: int
    is_tied: bool
    has_head_norm: bool = False

    def config(self) -> dict[str, object]:
        return {
            "architectures": [self.architecture],
            "model_type": self.architecture.removesuffix("ForCausalLM").lower(),
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": MAX_POSITIONS,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": self.is_tied,
            "attention_bias": False,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "torch_dtype": "bfloat16",
        }

    @property
    def layer_flops(self) -> int:
        """FLOPs of the layers' products for one token."""
        return 2 * sum(
            math.prod(size)
            for name, size in self.tensors().items()
            if name.startswith("model.layers.")
        )

    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        """Tensor shapes, by their names in Hugging Face's checkpoints."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, self.hidden)
        }
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}"
            shapes |= {
                f"{prefix}.input_layernorm.weight": (self.hidden,),
                f"{prefix}.self_attn.q_proj.weight": (q, self.hidden),
                f"{prefix}.self_attn.k_proj.weight": (kv, self.hidden),
                f"{prefix}.self_attn.v_proj.weight": (kv, self.hidden),
                f"{prefix}.self_attn.o_proj.weight": (self.hidden, q),
                f"{prefix}.post_attention_layernorm.weight": (self.hidden,),
                f"{prefix}.mlp.gate_proj.weight": (self.ffn, self.hidden),
                f"{prefix}.mlp.up_proj.weight": (self.ffn, self.hidden),
                f"{prefix}.mlp.down_proj.weight": (self.hidden, self.ffn),
            }
            if self.has_head_norm:
                shapes[f"{prefix}.self_attn.q_norm.weight"] = (self.head_dim,)
                shapes[f"{prefix}.self_attn.k_norm.weight"] = (self.head_dim,)
        shapes["model.norm.weight"] = (self.hidden,)
        if not self.is_tied:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden)
        return shapes


SHAPES = {
    "tiny": Shape(
        name="tiny",
        architecture="LlamaForCausalLM",
        num_layers=4,
        hidden=256,
        num_heads=8,
        num_kv_heads=4,
        head_dim=32,
        ffn=1024,
        vocab_size=4096,
        is_tied=False,
    ),
    "0.6b": Shape(
        name="0.6b",
        architecture="Qwen3ForCausalLM",
        num_layers=28,
        hidden=1024,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        ffn=3072,
        vocab_size=151_936,
        is_tied=True,
        has_head_norm=True,
    ),
}


def checkpoint(shape: Shape, folder: Path) -> Path:
    """The Hugging Face folder; made if missing."""
    made = folder / shape.name
    if (made / "config.json").exists():
        return made
    made.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    tensors = {name: _random(size, generator) for name, size in shape.tensors().items()}
    save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
    (made / "tokenizer.json").write_text(_tokenizer(shape.vocab_size).to_str())
    (made / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": SPECIAL[0],
                "eos_token": SPECIAL[1],
                "model_max_length": MAX_POSITIONS,
            }
        )
    )
    # Written last, as it marks the folder as complete.
    (made / "config.json").write_text(json.dumps(shape.config()))
    return made


def gguf(shape: Shape, folder: Path, python: Path) -> Path:
    """The same weights for llama.cpp; `python` has the package gguf."""
    made = folder / f"{shape.name}.gguf"
    if not made.exists():
        source = checkpoint(shape, folder)
        unfinished = made.with_suffix(".part")
        subprocess.run([str(python), str(GGUF_WRITER), str(source), str(unfinished)], check=True)
        unfinished.rename(made)
    return made


def quantized_gguf(source: Path, kind: str, quantize: Path) -> Path:
    """Quantise with the program `quantize` (llama-quantize), which knows `kind`."""
    made = source.with_name(f"{source.stem}-{kind}.gguf")
    if not made.exists():
        unfinished = made.with_suffix(".part")
        command = [str(quantize), "--pure", str(source), str(unfinished), kind]
        subprocess.run(command, check=True, capture_output=True)
        unfinished.rename(made)
    return made


def openvino_ir(source: Path, kind: str, python: Path) -> Path:
    """Export with optimum-intel, which `python` has; `kind` of weights: fp16, int8 or int4."""
    made = source.with_name(f"{source.name}-openvino-{kind}")
    if not made.exists():
        unfinished = made.with_name(f"{made.name}.part")
        command = [str(python), "-m", "optimum.commands.optimum_cli", "export", "openvino"]
        command += ["--model", str(source), "--task", "text-generation-with-past"]
        command += ["--weight-format", kind, str(unfinished)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        unfinished.rename(made)
    return made


def _random(size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if len(size) == 1:
        return torch.ones(size, dtype=torch.bfloat16)
    values = torch.empty(size, dtype=torch.bfloat16)
    return values.normal_(0.0, SCALE, generator=generator)


def _tokenizer(vocab_size: int) -> Tokenizer:
    """A byte-level tokenizer, as GPT-2's; encodes lower-case text, and decodes any token."""
    first = [*SPECIAL, *LETTERS, "ab"]
    words = [f"Ġw{index}" for index in range(len(first), vocab_size)]
    vocab = {token: index for index, token in enumerate([*first, *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer
