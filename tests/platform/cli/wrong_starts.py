"""Deployments that cannot come up, each as somebody would make it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import zeros

from baton.platform.models.model_folder import find_model

SHARD = "model-00002-of-00003.safetensors"
TENSOR = "model.layers.1.mlp.up_proj.weight"
LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
THREE_MISTAKES = """
quantise: int8
prefill: {replicas: two, cache: {block_sise: 16}}
"""


@dataclass(frozen=True)
class WrongStart:
    name: str
    words: Callable[[Path], list[str]]
    """What follows `baton serve`, once files are made in a folder."""
    complaint: str
    """Part of what is to be said."""
    needs_model: bool = False
    """Only the process that builds the model can tell."""


def model(folder: Path) -> Path:
    """A copy of the demo, in three files."""
    return Path(shutil.copytree(find_model("demo"), folder / "model"))


def changed(folder: Path, **changes: Any) -> list[str]:
    made = model(folder)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, **changes}))
    return [str(made)]


def without_shard(folder: Path) -> list[str]:
    made = model(folder)
    (made / SHARD).unlink()
    return [str(made)]


def cut_short(folder: Path) -> list[str]:
    made = model(folder)
    (made / SHARD).write_bytes((made / SHARD).read_bytes()[:-1000])
    return [str(made)]


def without_tensor(folder: Path) -> list[str]:
    made = model(folder)
    index = made / "model.safetensors.index.json"
    described = json.loads(index.read_text())
    shard = made / described["weight_map"].pop(TENSOR)
    tensors = load_file(shard)
    del tensors[TENSOR]
    save_file(tensors, shard)
    index.write_text(json.dumps(described))
    return [str(made)]


def broken_json(folder: Path) -> list[str]:
    made = model(folder)
    (made / "config.json").write_text((made / "config.json").read_text()[:-20])
    return [str(made)]


def three_mistakes(folder: Path) -> list[str]:
    file = folder / "baton.yaml"
    file.write_text(THREE_MISTAKES)
    return ["-f", str(file)]


def foreign_adapter(folder: Path) -> list[str]:
    """An adapter of a model with more layers."""
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    layer = "base_model.model.model.layers.99.self_attn.q_proj"
    pair = {f"{layer}.lora_A.weight": zeros(2, 256), f"{layer}.lora_B.weight": zeros(256, 2)}
    save_file(pair, adapter / "adapter_model.safetensors")
    return ["--adapter", f"sql={adapter}"]


WRONG_STARTS = (
    WrongStart("no such folder", lambda _: ["./no/such"], "no folder ./no/such; give a model"),
    WrongStart(
        "an architecture misspelt",
        lambda folder: changed(folder, architectures=["LlamaForCausalLn"]),
        "is not supported (did you mean LlamaForCausalLM?)",
    ),
    WrongStart("config.json cut short", broken_json, "config.json cannot be read as JSON"),
    WrongStart("a shard missing", without_shard, f"of which {SHARD} does not exist; fetch"),
    WrongStart("a shard cut short", cut_short, "it was cut short: fetch it again"),
    WrongStart(
        "no such adapter",
        lambda _: ["--adapter", "sql=./no/such"],
        "adapters.sql: no folder ./no/such; give an adapter's folder",
    ),
    WrongStart(
        "an adapter that is a model",
        lambda folder: ["--adapter", f"sql={model(folder)}"],
        "has no adapter_config.json: not a LoRA adapter of PEFT",
    ),
    WrongStart(
        "an adapter without a name",
        lambda _: ["--adapter", "/models/sql"],
        "'/models/sql' is not NAME=VALUE",
    ),
    WrongStart(
        "an adapter of another model",
        foreign_adapter,
        "adapter `sql`: model.layers.99.self_attn.q_proj: the model has no such layer",
        needs_model=True,
    ),
    WrongStart("three mistakes at once", three_mistakes, "3 mistakes; `baton config schema`"),
    WrongStart(
        "a quantization unheard of",
        lambda _: ["--quantize", "int5"],
        "'int5' is not one of 'none', 'wide', 'int8', 'int4'",
    ),
    WrongStart("a tensor missing", without_tensor, f"missing tensors: {TENSOR}", needs_model=True),
    WrongStart(
        "tensors of another shape",
        lambda folder: changed(folder, intermediate_size=648),
        "gate_proj.weight is [640, 256], not [648, 256]",
        needs_model=True,
    ),
    WrongStart(
        "a model larger than the machine",
        lambda folder: [*changed(folder, **LLAMA_70B), "--load-format", "dummy"],
        "too little memory: the weights of 1 decode and 1 prefill replicas need 510.",
        needs_model=True,
    ),
    WrongStart(
        "too many replicas",
        lambda _: ["--decode", "9000"],
        "start fewer replicas (one, --prefill 0 --decode 1)",
    ),
)
