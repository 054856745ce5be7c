"""Loads a model folder into a model that runs.

The names and shapes of all tensors are checked before the first is read. Then weights are assembled
from the memory-mapped files one after the other, cast, packed and installed, and the pages they
were read from are released, so a model is never in memory twice.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import torch

from baton.core.errors import InvalidConfig
from baton.core.kv_layout import KvLayout
from baton.engine.checkpoint.active_parameters import active_parameters
from baton.engine.checkpoint.adapters.placed_adapters import NO_ADAPTERS, place_adapters
from baton.engine.checkpoint.deterministic import WORD, check_deterministic, fix_order
from baton.engine.checkpoint.dummy import dummy_entries
from baton.engine.checkpoint.files.tensor_files import StoredEntry, TensorEntry, read_entries
from baton.engine.checkpoint.fingerprint import fingerprint
from baton.engine.checkpoint.install import (
    AS_STORED,
    QUANTIZERS,
    attention_of,
    dtype_of,
    install,
    install_expert,
    order_of_sums,
    rounding_of,
)
from baton.engine.checkpoint.quantized.installer import QuantizedInstaller
from baton.engine.checkpoint.quantized.methods import as_whole, parse_layout
from baton.engine.checkpoint.reading import CheckpointReader, Progress
from baton.engine.checkpoint.serving_dtype import serving_dtype
from baton.engine.checkpoint.tensor_check import STORED_DTYPES, check_tensors
from baton.engine.mesh.ranks import ONE_RANK, MeshGroups, RankGroup
from baton.engine.models.config.description import architecture_of, read_json
from baton.engine.models.config.info import ModelInfo
from baton.engine.models.config.model_config import ModelConfig, parse_eos
from baton.engine.models.registry import family_of
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.family import Family
from baton.engine.sharding.cutting import (
    Cutter,
    join_ranks,
    share_of,
    share_of_kv,
    splits_vocabulary,
)
from baton.engine.sharding.held_experts import HeldExperts
from baton.engine.sharding.placement import WeightPlacement, find_sources, place
from baton.engine.sharding.stages import Stages, keep_own_stage, kv_of_layers
from baton.kernels.cpu import operators
from baton.kernels.paging.window import Streaming

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One rank's part of a model, with its weights, and facts about the whole model."""

    model: Decoder
    """This rank's part."""
    info: ModelInfo
    """Facts about the whole model."""
    folder: Path = Path()
    load_format: str = "auto"
    num_active: int = 0
    """Active parameters per token of the whole model; 0 if not known."""
    groups: MeshGroups = ONE_RANK
    """The groups of ranks that share the model."""
    stages: Stages = ()
    """The layers of each pipeline stage; empty if there is one stage."""
    held: HeldExperts | None = None
    """The experts that this rank holds; None without expert parallelism."""
    is_deterministic: bool = False
    """Whether fixed-order kernels must be chosen for `deterministic`: on a GPU, or where latent
    attention has two forms. Elsewhere results are deterministic anyway."""

    def own(self, layout: KvLayout) -> KvLayout:
        """The layout of this rank's share of the whole model's KV."""
        return self.share(layout, self.groups.engine.rank)

    def share(self, layout: KvLayout, rank: int) -> KvLayout:
        """The layout of the share of the engine's `rank`."""
        own = share_of_kv(layout, self.groups.mesh.engine, rank)
        return kv_of_layers(own, self._layers(rank)) if self.stages else own

    def first_plane(self, layout: KvLayout, rank: int) -> int:
        """The first KV plane that the engine's `rank` stores, in the whole model's numbering."""
        return layout.planes_of(self._layers(rank).start).start if self.stages else 0

    def _layers(self, rank: int) -> range:
        return self.stages[self.groups.mesh.engine.place(rank).stage]


def load_model(  # noqa: PLR0913  # what the configuration says of a model
    folder: Path,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    load_format: str = "auto",
    quantize: str = "none",
    deterministic: bool = False,
    max_model_len: int | None = None,
    streaming: Streaming | None = None,
    adapters: Mapping[str, Path] = NO_ADAPTERS,
    progress: Progress | None = None,
    groups: MeshGroups = ONE_RANK,
) -> LoadedModel:
    """Load a model; each rank of `groups` reads its part.

    `dtype`: see serving_dtype.py for `auto`. `load_format`: `dummy` makes up weights from
    config.json alone. `quantize`: `int8` and `int4` quantize weights while loading; quantized
    checkpoints stay quantized if the device can multiply them, unless it is `wide`.
    `deterministic`: see deterministic.py. `max_model_len`: the longest request that will be served;
    None is the model's own context. `streaming`: the window and sinks that tokens see in layers
    with full attention. `adapters`: folders of LoRA adapters, by the names by which requests ask
    for them.

    Raises CheckpointError if the model or an adapter cannot be served, with what was found and what
    is supported, and InvalidConfig if it cannot be quantized for the device, split over the ranks,
    or made deterministic.
    """
    config, model, entries, placements = plan_weights(folder, load_format, max_model_len, streaming)
    num_active = active_parameters(model)
    declared = _declared_dtype(config, entries[placements[0].source])
    wanted = serving_dtype(dtype, declared, device)
    if dtype == "auto" and wanted != declared:
        logger.warning(
            "a checkpoint in %s is served as %s, for which a CPU has operators; "
            "--dtype float32 keeps full precision",
            declared,
            wanted,
        )
    _check_quantize(quantize, device, wanted)
    if deterministic:
        check_deterministic(config, device, wanted, groups.mesh)
    _warn_if_slow(quantize, device, wanted)
    placed = place_adapters(adapters, model, config, placements)
    cutter = None
    stages: Stages = ()
    if groups.mesh.size > 1:
        whole, model = model, family_of(config.architecture).build(share_of(config, groups.mesh))
        stages = keep_own_stage(model, config, groups)
        cutter = Cutter(whole, model, groups)
        placements = _of_parameters(model, placements)
    placed.install(model, cutter, getattr(torch, wanted), device)
    held = HeldExperts(model, config, groups)
    placements = held.own(placements)
    own_entries = {p.source: entries[p.source] for p in placements}
    reading = CheckpointReader(config.heads, placements, own_entries, progress, cutter)
    installer = QuantizedInstaller(
        placements,
        own_entries,
        getattr(torch, wanted),
        device,
        quantize,
        is_batch_invariant=deterministic,
    )
    for (target, slot), found in groupby(placements, lambda each: (each.target, each.slot)):
        sources = list(found)
        is_whole = cutter is None or cutter.keeps_whole(target)
        if is_whole and installer.install(model, target, sources):
            reading.skip(sources)
            continue
        with reading.assembled(sources, dtype_of(model, target, wanted)) as tensor:
            if slot is None:
                install(model, target, tensor, device, quantize, is_batch_invariant=deterministic)
            else:
                install_expert(model, target, slot, tensor, device, quantize)
    installer.report()
    held.join(device)
    join_ranks(model, groups, splits_vocabulary=splits_vocabulary(config, groups.mesh.tensor))
    rounding = rounding_of(quantize, device, getattr(torch, wanted))
    if _is_anywhere(installer.has_installed, groups):
        rounding = installer.rounding(is_of_experts=groups.mesh.tensor > 1)
    rounding += order_of_sums(device, getattr(torch, wanted))
    rounding += attention_of(device, getattr(torch, wanted))
    is_deterministic = deterministic and (device != "cpu" or model.latent is not None)
    if is_deterministic:
        fix_order(model)
        rounding += WORD
    name = fingerprint(config, entries, wanted, rounding, placed.fingerprints)
    return LoadedModel(
        model=model.to(device).eval(),
        info=_info(config, wanted, quantize, name, placed.names),
        folder=folder,
        load_format=load_format,
        num_active=num_active,
        groups=groups,
        stages=stages,
        held=held if held.modules else None,
        is_deterministic=is_deterministic,
    )


def _info(
    config: ModelConfig, dtype: str, quantize: str, name: bytes, adapters: tuple[str, ...]
) -> ModelInfo:
    return ModelInfo(
        architecture=config.architecture,
        vocab_size=config.vocab_size,
        max_model_len=config.max_model_len,
        eos_token_ids=config.eos_token_ids,
        dtype=dtype,
        num_labels=config.num_labels,
        quantize=quantize,
        fingerprint=name,
        num_layers=config.num_layers,
        num_kv_heads=config.heads.num_kv_heads,
        head_dim=config.heads.head_dim,
        num_vectors=config.num_vectors,
        side_caches=config.side_caches(dtype),
        adapters=adapters,
    )


def _is_anywhere(is_here: bool, groups: MeshGroups) -> bool:
    """Whether `is_here` is true on any rank. A collective over all ranks, whose fingerprints of the
    model must be equal."""
    if not isinstance(groups.everyone, RankGroup):
        return is_here
    return any(found for (found,) in groups.everyone.gather(array("q", (is_here,))))


def _of_parameters(model: Decoder, placements: Sequence[WeightPlacement]) -> list[WeightPlacement]:
    """The placements whose target is a parameter of the model."""
    targets = {name for name, _ in model.named_parameters()}
    return [placement for placement in placements if placement.target in targets]


def _check_quantize(quantize: str, device: str, dtype: str) -> None:
    if quantize in AS_STORED:
        return
    if quantize not in QUANTIZERS:
        known = ", ".join((*AS_STORED, *QUANTIZERS))
        raise InvalidConfig(f"quantize {quantize!r} is not known; set one of {known}")
    if torch.device(device).type not in ("cpu", "cuda"):
        raise InvalidConfig(
            f"quantize {quantize!r} is supported on CPUs and CUDA devices, not on {device}"
        )
    if device == "cpu" and getattr(torch, dtype) not in operators.SUFFIXES:
        compiled = " or ".join(str(kind).removeprefix("torch.") for kind in operators.SUFFIXES)
        raise InvalidConfig(
            f"quantize {quantize!r} with dtype {dtype!r} is not supported on a CPU; set dtype to "
            f"{compiled}, or quantize to none"
        )


def _warn_if_slow(quantize: str, device: str, dtype: str) -> None:
    if quantize in AS_STORED or device != "cpu":
        return
    if not operators.runs(torch.empty(0, dtype=getattr(torch, dtype))):
        logger.warning(
            "there is no compiled kernel for %s weights in %s, so products are slow",
            quantize,
            dtype,
        )


def check_model(  # noqa: PLR0913  # what the configuration says of a model
    folder: Path,
    *,
    load_format: str = "auto",
    dtype: str = "auto",
    quantize: str = "none",
    deterministic: bool = False,
    device: str | None = None,
    streaming: Streaming | None = None,
    adapters: Mapping[str, Path] = NO_ADAPTERS,
) -> None:
    """Raise the error that `load_model` would raise on one rank, without reading any weights.

    Support for `quantize` and `deterministic` is checked only if `device` is given.
    """
    config, model, entries, placements = plan_weights(folder, load_format, streaming=streaming)
    place_adapters(adapters, model, config, placements)
    declared = _declared_dtype(config, entries[placements[0].source])
    wanted = serving_dtype(dtype, declared, device or "cpu")
    if device is not None:
        _check_quantize(quantize, device, wanted)
        if deterministic:
            check_deterministic(config, device, wanted)


def plan_weights(
    folder: Path,
    load_format: str,
    max_model_len: int | None = None,
    streaming: Streaming | None = None,
) -> tuple[ModelConfig, Decoder, Mapping[str, TensorEntry], list[WeightPlacement]]:
    """The configuration, the whole model without weights, the checkpoint's tensors and where each
    of them goes. Raises CheckpointError if a tensor is missing or has another shape."""
    config = read_config(folder)
    if max_model_len is not None:
        config = config.serving(max_model_len)
    if streaming is not None:
        config = config.streaming(streaming)
    family = family_of(config.architecture)
    model = family.build(config)
    stored = {} if load_format == "dummy" else read_entries(folder)
    placements = list(place(model, family, config.num_layers, stored.keys()))
    entries = _entries(folder, stored, placements, load_format, family)
    placements = find_sources(placements, entries.keys(), family.base_prefix)
    check_tensors(placements, entries, config, family)
    return config, model, entries, placements


def _entries(
    folder: Path,
    stored: Mapping[str, StoredEntry],
    placements: list[WeightPlacement],
    load_format: str,
    family: Family,
) -> Mapping[str, TensorEntry]:
    if load_format == "dummy":
        shapes = {placement.source: placement.shape for placement in placements}
        return dummy_entries(shapes, family.integers)
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


def _declared_dtype(config: ModelConfig, first: TensorEntry) -> str:
    return config.dtype or STORED_DTYPES[first.dtype]
