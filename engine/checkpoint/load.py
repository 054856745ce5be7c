"""From a model folder to a model that runs.

All tensors are checked by name and shape before the first is read; then each is copied from the
memory-mapped file to its place, and cast on the way, so a model is never in memory twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from baton.core.errors import CheckpointError
from baton.core.kv_layout import WIDE
from baton.engine.checkpoint.config import (
    ModelConfig,
    architecture_of,
    parse_eos,
    read_json,
)
from baton.engine.checkpoint.dummy import dummy_entries
from baton.engine.checkpoint.fingerprint import fingerprint
from baton.engine.checkpoint.info import ModelInfo
from baton.engine.checkpoint.placement import Placement, find_sources, place
from baton.engine.checkpoint.tensor_files import TensorEntry, read_entries
from baton.engine.models.decoder import Decoder
from baton.engine.models.family import Family
from baton.engine.models.registry import family_of

Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes in all)."""

STORED_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    model: Decoder
    info: ModelInfo


def load_model(
    folder: Path,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    load_format: str = "auto",
    max_model_len: int | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Read a model. `auto` is the dtype that config.json declares, else that of the tensors.

    `max_model_len` is the longest request that will be served; None is the model's own context.
    The load format `dummy` makes up weights from config.json alone.
    Raises CheckpointError, with what was found and what is supported, if it cannot be served.
    """
    config, model, entries, placements = _plan(folder, load_format, max_model_len)
    wanted = _serving_dtype(dtype, config, entries[placements[0].source])
    state = {
        name: torch.empty(parameter.shape, dtype=getattr(torch, wanted), device=device)
        for name, parameter in model.named_parameters()
    }
    _fill(state, placements, entries, config, progress)
    model.load_state_dict(state, assign=True)
    return LoadedModel(
        model=model.to(device).eval(),
        info=ModelInfo(
            architecture=config.architecture,
            vocab_size=config.vocab_size,
            max_model_len=config.max_model_len,
            eos_token_ids=config.eos_token_ids,
            dtype=wanted,
            fingerprint=fingerprint(config, entries, wanted),
            num_layers=config.num_layers,
            num_kv_heads=config.heads.num_kv_heads,
            head_dim=config.heads.head_dim,
        ),
    )


def check_model(folder: Path, *, load_format: str = "auto") -> None:
    """Raise the CheckpointError that `load_model` would raise, without reading any weights."""
    _plan(folder, load_format)


def _plan(
    folder: Path, load_format: str, max_model_len: int | None = None
) -> tuple[ModelConfig, Decoder, Mapping[str, TensorEntry], list[Placement]]:
    config = read_config(folder)
    if max_model_len is not None:
        config = config.serving(max_model_len)
    family = family_of(config.architecture)
    model = family.build(config)
    placements = list(place(model, family, config.num_layers))
    entries = _entries(folder, placements, load_format)
    placements = find_sources(placements, entries.keys(), family.base_prefix)
    _check(placements, entries, config, family)
    return config, model, entries, placements


def _entries(
    folder: Path, placements: list[Placement], load_format: str
) -> Mapping[str, TensorEntry]:
    if load_format == "dummy":
        return dummy_entries({placement.source: placement.shape for placement in placements})
    return read_entries(folder)


def read_config(folder: Path) -> ModelConfig:
    """The configuration of a model folder, with the end tokens of `generation_config.json`."""
    raw = read_json(folder / "config.json")
    config = family_of(architecture_of(raw)).parse_config(raw)
    generation = folder / "generation_config.json"
    if generation.exists():
        eos_token_id = read_json(generation).get("eos_token_id")
        if eos_token_id is not None:
            return replace(config, eos_token_ids=parse_eos(eos_token_id))
    return config


def _check(
    placements: list[Placement],
    entries: Mapping[str, TensorEntry],
    config: ModelConfig,
    family: Family,
) -> None:
    wanted = {placement.source: placement.shape for placement in placements}
    missing = sorted(wanted.keys() - entries.keys())
    unexpected = sorted(
        name for name in entries.keys() - wanted.keys() if not _is_redundant(name, config, family)
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


def _is_redundant(name: str, config: ModelConfig, family: Family) -> bool:
    """Old checkpoints store buffers, and some with a tied head store the head as well."""
    return name.endswith(family.buffers) or (
        config.tie_word_embeddings and name == "lm_head.weight"
    )


def _first(names: list[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _serving_dtype(dtype: str, config: ModelConfig, first: TensorEntry) -> str:
    if dtype == "auto":
        return config.dtype or STORED_DTYPES[first.dtype]
    if dtype not in WIDE:
        raise CheckpointError(f"dtype {dtype!r}; supported are auto, {', '.join(WIDE)}")
    return dtype


def _fill(
    state: dict[str, Tensor],
    placements: list[Placement],
    entries: Mapping[str, TensorEntry],
    config: ModelConfig,
    progress: Progress | None,
) -> None:
    total = sum(entries[placement.source].num_bytes for placement in placements)
    done = 0
    for placement in placements:
        entry = entries[placement.source]
        ours = placement.arrangement.ours(entry.load(), config.heads)
        state[placement.target][placement.rows].copy_(ours)
        done += entry.num_bytes
        if progress is not None:
            progress(done, total)
