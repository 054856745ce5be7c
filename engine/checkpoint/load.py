"""From a model folder to a model that runs.

All tensors are checked by name and shape before the first is read; then each is copied from the
memory-mapped file to its place, and cast on the way, so a model is never in memory twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from baton.core.errors import CheckpointError
from baton.core.kv_layout import ITEM_BYTES
from baton.engine.checkpoint.config import (
    ModelConfig,
    architecture_of,
    parse_config,
    parse_eos,
    read_json,
)
from baton.engine.checkpoint.fingerprint import fingerprint
from baton.engine.checkpoint.info import ModelInfo
from baton.engine.checkpoint.tensor_files import TensorEntry, read_entries
from baton.engine.layers.linear import Linear
from baton.engine.models.decoder import Decoder
from baton.engine.models.registry import family_of

Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes in all)."""

STORED_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    model: Decoder
    info: ModelInfo


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one tensor of a checkpoint goes: some rows of one of our parameters."""

    source: str
    target: str
    first_row: int
    shape: tuple[int, ...]


def load_model(
    folder: Path,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    progress: Progress | None = None,
) -> LoadedModel:
    """Read a model. `auto` is the dtype that config.json declares, else that of the tensors.

    Raises CheckpointError, with what was found and what is supported, if it cannot be served.
    """
    config, model, entries, placements = _plan(folder)
    wanted = _serving_dtype(dtype, config, entries[placements[0].source])
    state = {
        name: torch.empty(parameter.shape, dtype=getattr(torch, wanted), device=device)
        for name, parameter in model.named_parameters()
    }
    _fill(state, placements, entries, progress)
    model.load_state_dict(state, assign=True)
    return LoadedModel(
        model=model.to(device).eval(),
        info=ModelInfo(
            architecture=config.architecture,
            vocab_size=config.vocab_size,
            max_model_len=config.max_position_embeddings,
            eos_token_ids=config.eos_token_ids,
            dtype=wanted,
            fingerprint=fingerprint(config, entries, wanted),
            num_layers=config.num_layers,
            num_kv_heads=config.heads.num_kv_heads,
            head_dim=config.heads.head_dim,
        ),
    )


def check_model(folder: Path) -> None:
    """Raise the CheckpointError that `load_model` would raise, without reading any weights."""
    _plan(folder)


def _plan(
    folder: Path,
) -> tuple[ModelConfig, Decoder, Mapping[str, TensorEntry], list[Placement]]:
    config = read_config(folder)
    family = family_of(config.architecture)
    entries = read_entries(folder)
    model = family.build(config)
    placements = list(_placements(model, family.checkpoint, config.num_layers))
    _check(placements, entries, config)
    return config, model, entries, placements


def read_config(folder: Path) -> ModelConfig:
    """The configuration of a model folder, with the end tokens of `generation_config.json`."""
    raw = read_json(folder / "config.json")
    config = parse_config({**family_of(architecture_of(raw)).defaults, **raw})
    generation = folder / "generation_config.json"
    if generation.exists():
        eos_token_id = read_json(generation).get("eos_token_id")
        if eos_token_id is not None:
            return replace(config, eos_token_ids=parse_eos(eos_token_id))
    return config


def _placements(
    model: Decoder, checkpoint: Mapping[str, tuple[str, ...]], num_layers: int
) -> Iterator[Placement]:
    parameters = dict(model.named_parameters())
    for pattern, sources in checkpoint.items():
        for i in range(num_layers if "{i}" in pattern else 1):
            target = pattern.format(i=i)
            if target not in parameters:  # the head of a model that is tied to its embedding
                continue
            module = model.get_submodule(target.rpartition(".")[0])
            shape = parameters[target].shape
            rows = module.rows if isinstance(module, Linear) else (shape[0],)
            first_row = 0
            for source, num_rows in zip(sources, rows, strict=True):
                yield Placement(source.format(i=i), target, first_row, (num_rows, *shape[1:]))
                first_row += num_rows


def _check(
    placements: list[Placement], entries: Mapping[str, TensorEntry], config: ModelConfig
) -> None:
    wanted = {placement.source: placement.shape for placement in placements}
    missing = sorted(wanted.keys() - entries.keys())
    unexpected = sorted(
        name for name in entries.keys() - wanted.keys() if not _is_redundant(name, config)
    )
    misfits = [
        f"{name} is {list(entries[name].shape)}, not {list(shape)}"
        for name, shape in wanted.items()
        if name in entries and entries[name].shape != shape
    ]
    odd = sorted(
        f"{name} is {entries[name].dtype}, not one of {', '.join(STORED_DTYPES)}"
        for name in wanted.keys() & entries.keys()
        if entries[name].dtype not in STORED_DTYPES
    )
    problems = {
        "missing tensors": missing,
        "unexpected tensors": unexpected,
        "wrong shapes": misfits,
        "unsupported dtypes": odd,
    }
    if any(problems.values()):
        raise CheckpointError(
            f"the checkpoint is no {config.architecture} of its config.json: "
            + "; ".join(f"{what}: {_first(names)}" for what, names in problems.items() if names)
        )


def _is_redundant(name: str, config: ModelConfig) -> bool:
    """Old checkpoints store RoPE's frequencies; some with a tied head store the head as well."""
    return name.endswith(".rotary_emb.inv_freq") or (
        config.tie_word_embeddings and name == "lm_head.weight"
    )


def _first(names: list[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _serving_dtype(dtype: str, config: ModelConfig, first: TensorEntry) -> str:
    if dtype == "auto":
        return config.dtype or STORED_DTYPES[first.dtype]
    if dtype not in ITEM_BYTES:
        raise CheckpointError(f"dtype {dtype!r}; supported are auto, {', '.join(ITEM_BYTES)}")
    return dtype


def _fill(
    state: dict[str, Tensor],
    placements: list[Placement],
    entries: Mapping[str, TensorEntry],
    progress: Progress | None,
) -> None:
    total = sum(entries[placement.source].num_bytes for placement in placements)
    done = 0
    try:
        with ExitStack() as stack:
            files: dict[Path, Any] = {}  # safe_open has no types
            for placement in placements:
                entry = entries[placement.source]
                if entry.path not in files:
                    opened = safe_open(entry.path, framework="pt", device="cpu")
                    files[entry.path] = stack.enter_context(opened)
                rows = slice(placement.first_row, placement.first_row + placement.shape[0])
                source = files[entry.path].get_tensor(placement.source)
                state[placement.target][rows].copy_(source)
                done += entry.num_bytes
                if progress is not None:
                    progress(done, total)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{entry.path} cannot be read: {error}") from error
