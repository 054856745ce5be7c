"""From a model folder to a model that runs.

All tensors are checked by name and shape before the first is read. Then one weight after the other
is put together from the memory-mapped files, cast, packed and installed, and the pages it was read
from are given back: a model is never in memory twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from baton.core.errors import CheckpointError, InvalidConfig
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
from baton.engine.checkpoint.install import QUANTIZERS, install, rounding_of
from baton.engine.checkpoint.placement import Placement, find_sources, place
from baton.engine.checkpoint.tensor_files import TensorEntry, read_entries
from baton.engine.models.decoder import Decoder
from baton.engine.models.family import Family
from baton.engine.models.registry import family_of
from baton.kernels.cpu import huge_pages, operators

Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes in all)."""

logger = logging.getLogger(__name__)
STORED_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    model: Decoder
    info: ModelInfo


def load_model(  # noqa: PLR0913  # what the configuration says of a model
    folder: Path,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    load_format: str = "auto",
    quantize: str = "none",
    max_model_len: int | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Read a model. `auto` is the dtype that config.json declares, else that of the tensors.

    `max_model_len` is the longest request that will be served; None is the model's own context.
    The load format `dummy` makes up weights from config.json alone. Weights may be quantised on the
    way, to `int8` or `int4`.
    Raises CheckpointError, with what was found and what is supported, if it cannot be served, and
    InvalidConfig if it cannot be quantised for the device.
    """
    config, model, entries, placements = _plan(folder, load_format, max_model_len)
    wanted = _serving_dtype(dtype, config, entries[placements[0].source])
    _check_quantize(quantize, device, wanted)
    reading = _Reading(config, {p.source: entries[p.source] for p in placements}, progress)
    for target, sources in groupby(placements, lambda placement: placement.target):
        with reading.assembled(list(sources), getattr(torch, wanted)) as tensor:
            install(model, target, tensor, device, quantize)
    rounding = rounding_of(quantize, device, getattr(torch, wanted))
    return LoadedModel(
        model=model.to(device).eval(),
        info=ModelInfo(
            architecture=config.architecture,
            vocab_size=config.vocab_size,
            max_model_len=config.max_model_len,
            eos_token_ids=config.eos_token_ids,
            dtype=wanted,
            quantize=quantize,
            fingerprint=fingerprint(config, entries, wanted, rounding),
            num_layers=config.num_layers,
            num_kv_heads=config.heads.num_kv_heads,
            head_dim=config.heads.head_dim,
        ),
    )


def _check_quantize(quantize: str, device: str, dtype: str) -> None:
    if quantize == "none":
        return
    if quantize not in QUANTIZERS:
        raise InvalidConfig(f"quantize {quantize!r}; there are none, {', '.join(QUANTIZERS)}")
    if torch.device(device).type not in ("cpu", "cuda"):
        raise InvalidConfig(f"quantize {quantize!r} is for CPUs and CUDA, not for {device}")
    if device == "cpu" and not operators.runs(torch.empty(0, dtype=getattr(torch, dtype))):
        logger.warning("nothing is compiled for %s weights in %s: they are slow", quantize, dtype)


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


class _Reading:
    """Of the entries of a checkpoint, with a word after each."""

    def __init__(
        self,
        config: ModelConfig,
        entries: Mapping[str, TensorEntry],
        progress: Progress | None,
    ) -> None:
        self._config = config
        self._entries = entries
        self._progress = progress
        self._num_bytes = 0
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._total_bytes = sum(entry.num_bytes for entry in entries.values())

    @contextmanager
    def assembled(self, sources: Sequence[Placement], dtype: torch.dtype) -> Iterator[Tensor]:
        """A weight of ours, to be read only: a view of its file if it is stored as it is wanted."""
        parts = [self._load(source, dtype) for source in sources]
        if len(parts) == 1:
            yield parts[0]
        else:
            rows = sum(len(part) for part in parts)
            yield torch.cat(parts, out=self._room((rows, *parts[0].shape[1:]), dtype))
        for source in sources:
            self._entries[source.source].release()

    def _room(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory that the next weight gets too: new pages cost more than copying does."""
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        if self._memory.nbytes < num_bytes:
            self._memory = huge_pages.empty((num_bytes,), torch.uint8)
        return self._memory[:num_bytes].view(dtype).view(shape)

    def _load(self, source: Placement, dtype: torch.dtype) -> Tensor:
        entry = self._entries[source.source]
        loaded = source.arrangement.ours(entry.load(dtype), self._config.heads)
        self._num_bytes += entry.num_bytes
        if self._progress is not None:
            self._progress(self._num_bytes, self._total_bytes)
        return loaded
