"""From a model folder to a model that runs.

All tensors are checked by name and shape before the first is read. Then one weight after the other
is put together from the memory-mapped files, cast, packed and installed, and the pages it was read
from are given back: a model is never in memory twice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import torch

from baton.core.errors import CheckpointError, InvalidConfig
from baton.core.kv_layout import WIDE, KvLayout
from baton.engine.checkpoint.config import (
    ModelConfig,
    architecture_of,
    parse_eos,
    read_json,
)
from baton.engine.checkpoint.dummy import dummy_entries
from baton.engine.checkpoint.fingerprint import fingerprint
from baton.engine.checkpoint.info import ModelInfo
from baton.engine.checkpoint.install import (
    AS_STORED,
    QUANTIZERS,
    dtype_of,
    install,
    install_expert,
    rounding_of,
)
from baton.engine.checkpoint.placement import Placement, find_sources, place
from baton.engine.checkpoint.quantized_checkpoint import as_whole, parse_layout
from baton.engine.checkpoint.quantized_keep import NarrowKeeper
from baton.engine.checkpoint.reading import Progress, Reading
from baton.engine.checkpoint.tensor_files import StoredEntry, TensorEntry, read_entries
from baton.engine.models.decoder import Decoder
from baton.engine.models.family import Family
from baton.engine.models.registry import family_of
from baton.engine.parallel.cutting import (
    Cutter,
    join_ranks,
    share_of,
    share_of_kv,
    splits_vocabulary,
)
from baton.engine.parallel.ranks import ONE_RANK, MeshGroups
from baton.kernels.cpu import operators

logger = logging.getLogger(__name__)
STORED_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    model: Decoder
    """What this rank has of it."""
    info: ModelInfo
    """Of the whole."""
    groups: MeshGroups = ONE_RANK
    """Of the ranks that have a part each."""

    def own(self, layout: KvLayout) -> KvLayout:
        """What this rank keeps of the whole model's KV."""
        return share_of_kv(layout, self.groups.mesh, self.groups.everyone.rank)


def load_model(  # noqa: PLR0913  # what the configuration says of a model
    folder: Path,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    load_format: str = "auto",
    quantize: str = "none",
    max_model_len: int | None = None,
    progress: Progress | None = None,
    groups: MeshGroups = ONE_RANK,
) -> LoadedModel:
    """Read a model. `auto` is the dtype that config.json declares, else that of the tensors.

    `max_model_len` is the longest request that will be served; None is the model's own context.
    The load format `dummy` makes up weights from config.json alone. Weights may be quantised on the
    way, to `int8` or `int4`; those that come quantised are kept so where the device multiplies
    them, unless quantize is `wide`.
    Each rank of `groups` reads its part. Raises CheckpointError, with what was found and what is
    supported, if it cannot be served, and InvalidConfig if it cannot be quantised for the device or
    split among so many.
    """
    config, model, entries, placements = _plan(folder, load_format, max_model_len)
    cutter = None
    if groups.mesh.size > 1:
        whole, model = model, family_of(config.architecture).build(share_of(config, groups.mesh))
        cutter = Cutter(whole, model, groups)
    wanted = _serving_dtype(dtype, config, entries[placements[0].source])
    _check_quantize(quantize, device, wanted)
    reading = Reading(config, {p.source: entries[p.source] for p in placements}, progress, cutter)
    keeper = NarrowKeeper(placements, entries, getattr(torch, wanted), device, quantize)
    for (target, expert), found in groupby(placements, lambda each: (each.target, each.expert)):
        sources = list(found)
        if cutter is None and keeper.install(model, target, sources):
            reading.skip(sources)
            continue
        with reading.assembled(sources, dtype_of(model, target, wanted)) as tensor:
            if expert is None:
                install(model, target, tensor, device, quantize)
            else:
                install_expert(model, target, expert, tensor, device, quantize)
    keeper.report()
    join_ranks(model, groups, splits_vocabulary=splits_vocabulary(config, groups.mesh.tensor))
    rounding = keeper.rounding(rounding_of(quantize, device, getattr(torch, wanted)))
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
            num_vectors=config.num_vectors,
        ),
        groups=groups,
    )


def _check_quantize(quantize: str, device: str, dtype: str) -> None:
    if quantize in AS_STORED:
        return
    if quantize not in QUANTIZERS:
        known = ", ".join((*AS_STORED, *QUANTIZERS))
        raise InvalidConfig(f"quantize {quantize!r}; there are {known}")
    if torch.device(device).type not in ("cpu", "cuda"):
        raise InvalidConfig(f"quantize {quantize!r} is for CPUs and CUDA, not for {device}")
    if device == "cpu" and getattr(torch, dtype) not in operators.SUFFIXES:
        compiled = " or ".join(str(kind).removeprefix("torch.") for kind in operators.SUFFIXES)
        raise InvalidConfig(
            f"quantize {quantize!r} with dtype {dtype!r} on a CPU: nothing multiplies such weights "
            f"there; set dtype to {compiled}, or quantize to none"
        )
    if device == "cpu" and not operators.runs(torch.empty(0, dtype=getattr(torch, dtype))):
        logger.warning("nothing is compiled for %s weights in %s: they are slow", quantize, dtype)


def check_model(
    folder: Path,
    *,
    load_format: str = "auto",
    dtype: str = "auto",
    quantize: str = "none",
    device: str | None = None,
) -> None:
    """Raise the error that `load_model` would raise, without reading any weights.

    Whether a device multiplies what is quantised is asked only if one is named.
    """
    config, _, entries, placements = _plan(folder, load_format)
    wanted = _serving_dtype(dtype, config, entries[placements[0].source])
    if device is not None:
        _check_quantize(quantize, device, wanted)


def _plan(
    folder: Path, load_format: str, max_model_len: int | None = None
) -> tuple[ModelConfig, Decoder, Mapping[str, TensorEntry], list[Placement]]:
    config = read_config(folder)
    if max_model_len is not None:
        config = config.serving(max_model_len)
    family = family_of(config.architecture)
    model = family.build(config)
    stored = {} if load_format == "dummy" else read_entries(folder)
    placements = list(place(model, family, config.num_layers, stored.keys()))
    entries = _entries(folder, stored, placements, load_format)
    placements = find_sources(placements, entries.keys(), family.base_prefix)
    _check(placements, entries, config, family)
    return config, model, entries, placements


def _entries(
    folder: Path,
    stored: Mapping[str, StoredEntry],
    placements: list[Placement],
    load_format: str,
) -> Mapping[str, TensorEntry]:
    if load_format == "dummy":
        return dummy_entries({placement.source: placement.shape for placement in placements})
    layout = parse_layout(read_json(folder / "config.json"))
    return as_whole(stored, layout, {placement.source for placement in placements})


def read_config(folder: Path) -> ModelConfig:
    """The configuration of a model folder, with the end tokens of `generation_config.json`."""
    raw = read_json(folder / "config.json")
    parse_layout(raw)
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
    if any(family.is_of_further_layer(name, config.num_layers) for name in entries):
        logger.info("layers behind the last, which predict further tokens, are not loaded")


def _is_redundant(name: str, config: ModelConfig, family: Family) -> bool:
    """Old checkpoints store buffers, and some with a tied head store the head as well; others have
    layers that plain decoding does without, or see as well as read."""
    return (
        name.endswith(family.buffers)
        or name.startswith(family.foreign)
        or (config.tie_word_embeddings and name.endswith("lm_head.weight"))
        or family.is_of_further_layer(name, config.num_layers)
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
