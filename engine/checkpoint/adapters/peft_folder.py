"""Reads a LoRA adapter as PEFT saves it, without its tensors' bytes.

    adapter_config.json            rank, alpha, and what kind of adapter it is
    adapter_model.safetensors      or adapter_model.bin
        base_model.model.<layer>.lora_A.weight    [r, inputs]
        base_model.model.<layer>.lora_B.weight    [outputs, r]

    y = W x + s B A x      s = alpha / r, or alpha / sqrt(r) if it is rank-stabilised (rsLoRA)

LoRA: Hu et al. 2021. rsLoRA: Kalajdzievski 2023. A layer's rank is that of its tensors;
`alpha_pattern` and `lora_alpha` say its alpha. Settings that change the formula are refused.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from math import sqrt
from pathlib import Path

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.bin_file import read_bin
from baton.engine.checkpoint.files.safetensors_file import read_safetensors
from baton.engine.checkpoint.files.tensor_files import StoredEntry
from baton.engine.checkpoint.tensor_check import STORED_DTYPES
from baton.engine.models.config.description import read_json

CONFIG, SAFETENSORS, PICKLED = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "adapter_model.bin",
)
PREFIX = "base_model.model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
MAX_RANK = 512
UNSUPPORTED = (
    "use_dora",
    "lora_bias",
    "use_qalora",
    "use_bdlora",
    "layer_replication",
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
    "arrow_config",
)
"""Settings with which an adapter is more than A and B beside linear layers."""
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Values of `init_lora_weights` with which training changed the base model, too."""


@dataclass(frozen=True, slots=True)
class LayerUpdate:
    """An adapter's two matrices of one linear layer: y += scale B A x."""

    layer: str
    """The layer's name in the base model's checkpoint, without `.weight`."""
    down: StoredEntry
    """A [r, inputs]"""
    up: StoredEntry
    """B [outputs, r]"""
    scale: float

    @property
    def rank(self) -> int:
        return self.down.shape[0]


@dataclass(frozen=True)
class PeftAdapter:
    name: str
    """Its name in requests."""
    updates: tuple[LayerUpdate, ...]

    @cached_property
    def fingerprint(self) -> bytes:
        """Equal only for equal names, scales, shapes, dtypes and bytes. Raises CheckpointError if
        the file cannot be read."""
        digest = blake2b(self.name.encode(), digest_size=32)
        for update in self.updates:
            for entry in (update.down, update.up):
                told = (update.layer, update.scale, entry.dtype, entry.shape)
                digest.update(repr(told).encode())
                digest.update(entry.piece(0, entry.num_bytes))
                entry.release()
        return digest.digest()


def read_adapter(name: str, folder: Path) -> PeftAdapter:
    """Raises CheckpointError, beginning with the adapter's name, for a folder that is not complete
    or holds an adapter of another kind."""
    try:
        return PeftAdapter(name, _updates(folder))
    except CheckpointError as error:
        raise CheckpointError(f"adapter `{name}`: {error}") from error


def _updates(folder: Path) -> tuple[LayerUpdate, ...]:
    raw = read_json(folder / CONFIG)
    _check_kind(raw)
    found: defaultdict[str, dict[str, StoredEntry]] = defaultdict(dict)
    for key, entry in _entries(folder).items():
        matrix = DOWN if key.endswith(DOWN) else UP
        layer = key.removeprefix(PREFIX).removesuffix(matrix)
        if not key.startswith(PREFIX) or not key.endswith((DOWN, UP)):
            raise CheckpointError(
                f"{key} is neither A nor B of a linear layer; train it on linear layers alone, "
                "without embeddings, biases and whole modules"
            )
        found[layer][matrix] = entry
    if not found:
        raise CheckpointError(f"{folder} holds no tensors")
    return tuple(_update(raw, layer, pair) for layer, pair in sorted(found.items()))


def _check_kind(raw: Mapping[str, object]) -> None:
    if (kind := raw.get("peft_type", "LORA")) != "LORA":
        raise CheckpointError(f"{CONFIG}: peft_type {kind} is not served; train a LORA adapter")
    for key in UNSUPPORTED:
        if raw.get(key):
            raise CheckpointError(f"{CONFIG}: `{key}` is not supported; train without it")
    if (bias := raw.get("bias", "none")) != "none":
        raise CheckpointError(f"{CONFIG}: bias {bias!r} is not supported; train with bias none")
    started = raw.get("init_lora_weights", True)
    if isinstance(started, str) and started.lower().startswith(CHANGES_BASE):
        raise CheckpointError(
            f"{CONFIG}: init_lora_weights {started!r} changes the base model, too; save the "
            "adapter with path_initial_model_for_weight_conversion"
        )


def _entries(folder: Path) -> Mapping[str, StoredEntry]:
    if (folder / SAFETENSORS).exists():
        return read_safetensors(folder / SAFETENSORS)
    if (folder / PICKLED).exists():
        return read_bin(folder / PICKLED)
    raise CheckpointError(f"{folder} holds neither {SAFETENSORS} nor {PICKLED}")


def _update(raw: Mapping[str, object], layer: str, pair: Mapping[str, StoredEntry]) -> LayerUpdate:
    if missing := [matrix for matrix in (DOWN, UP) if matrix not in pair]:
        raise CheckpointError(f"{layer}{missing[0]} is missing; fetch the adapter again")
    down, up = pair[DOWN], pair[UP]
    for matrix, entry in pair.items():
        if entry.dtype not in STORED_DTYPES:
            known = ", ".join(STORED_DTYPES)
            raise CheckpointError(f"{layer}{matrix} is {entry.dtype}, not one of {known}")
    rank = down.shape[0] if down.shape else 0
    if len(down.shape) != 2 or len(up.shape) != 2 or up.shape[1] != rank or not rank:
        raise CheckpointError(
            f"{layer}: A is {list(down.shape)} and B is {list(up.shape)}; they must be "
            "[r, inputs] and [outputs, r]"
        )
    if rank > MAX_RANK:
        raise CheckpointError(f"{layer} has rank {rank}; at most {MAX_RANK} is supported")
    alpha = _alpha_of(raw, layer)
    is_stabilised = bool(raw.get("use_rslora"))
    return LayerUpdate(layer, down, up, alpha / (sqrt(rank) if is_stabilised else rank))


def _alpha_of(raw: Mapping[str, object], layer: str) -> float:
    """The alpha of a layer: the first pattern that its name ends with, as in PEFT, or the alpha
    for all."""
    patterns = raw.get("alpha_pattern")
    found: object = raw.get("lora_alpha")
    if isinstance(patterns, Mapping):
        for pattern, alpha in patterns.items():
            if _matches(str(pattern), layer):
                found = alpha
                break
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise CheckpointError(f"{CONFIG}: lora_alpha of {layer} is {found!r}, not a number")
    return float(found)


def _matches(pattern: str, layer: str) -> bool:
    try:
        return re.match(rf"(.*\.)?({pattern})$", layer) is not None
    except re.error as error:
        raise CheckpointError(f"{CONFIG}: alpha_pattern {pattern!r}: {error}") from error
