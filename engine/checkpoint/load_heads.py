"""Loads draft heads: a model's own MTP head, EAGLE, EAGLE-3, P-EAGLE and Medusa heads.

MTP       in the model's folder, the layer after its last
EAGLE     a folder of its own: fc, layers.0           uses the model's embedding and output head
EAGLE-3   a folder of its own: fc, midlayer, norm,    uses the model's embedding
          lm_head, d2t
P-EAGLE   like EAGLE-3, with mask_hidden              the mask token is in config.json
Medusa    a folder of its own: medusa_lm_head.pt      has output heads, or uses the model's
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from baton.core.errors import CheckpointError, InvalidConfig
from baton.engine.checkpoint.files.bin_file import read_bin
from baton.engine.checkpoint.files.safetensors_file import read_safetensors
from baton.engine.checkpoint.files.tensor_files import StoredEntry, read_entries
from baton.engine.checkpoint.fingerprint import fingerprint
from baton.engine.checkpoint.install import dtype_of, install, install_expert
from baton.engine.checkpoint.load import LoadedModel, read_config
from baton.engine.checkpoint.load_ends import ends_of
from baton.engine.checkpoint.quantized.methods import as_whole, parse_layout
from baton.engine.checkpoint.reading import CheckpointReader
from baton.engine.layers.attention import HeadShape
from baton.engine.models.config.description import read_json, wrong
from baton.engine.models.config.keys import ConfigKeys
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.families.llama import LLAMA
from baton.engine.models.heads import eagle, eagle3, medusa
from baton.engine.models.heads.eagle import EagleHead
from baton.engine.models.heads.eagle3 import Eagle3Head, FeatureJoin
from baton.engine.models.heads.medusa import MedusaHeads
from baton.engine.models.registry import family_of
from baton.engine.models.skeleton.family import Family
from baton.engine.models.skeleton.mtp import MtpHead, names_of
from baton.engine.models.skeleton.stream_decoder import StreamDecoder
from baton.engine.sharding.placement import place

MEDUSA_FILES: Mapping[str, Callable[[Path], Mapping[str, StoredEntry]]] = {
    "medusa_lm_head.safetensors": read_safetensors,
    "medusa_lm_head.pt": read_bin,
}


def load_mtp_head(folder: Path, loaded: LoadedModel, *, device: str) -> MtpHead:
    """Load the MTP head of the model in `folder`. It is not split over ranks, and its weights are
    not quantized.

    Raises CheckpointError if the checkpoint has no head, or only a part of it.
    """
    config = read_config(folder).serving(loaded.info.max_model_len)
    family = family_of(config.architecture)
    stored = read_entries(folder)
    names = names_of(family, config.num_layers)
    if not family.further_layers or names.checkpoint["join.first.weight"][0] not in stored:
        raise CheckpointError(
            f"{folder} has no MTP head, which predicts the token after the next; use a checkpoint "
            "that has one, or do without it"
        )
    head = MtpHead(config, family)
    _read(head, names, folder, stored, loaded.info.dtype, device, heads=config.heads)
    head.share(ends_of(loaded, head.shares, device=device))
    return head.to(device).eval()


def load_eagle_head(
    folder: Path, loaded: LoadedModel, *, device: str, is_parallel: bool = False
) -> EagleHead | Eagle3Head:
    """Load an EAGLE or EAGLE-3 head, whichever `folder` holds. `is_parallel`: it must be a P-EAGLE
    head, which drafts several tokens in one pass.

    Raises CheckpointError if the head was trained for another model or is incomplete, and
    InvalidConfig if the model has no single residual stream to read.
    """
    raw = read_json(folder / "config.json")
    stored = read_entries(folder)
    config = replace(read_head_config(folder), max_model_len=loaded.info.max_model_len)
    _check_model(folder, config, loaded)
    head: EagleHead | Eagle3Head
    mask_token = _mask_token(folder, raw, stored, config.vocab_size) if is_parallel else None
    if "norm.weight" in stored:
        taps = _taps(raw, loaded)
        kind = _joined_kind(config, taps, stored)
        head = Eagle3Head(config, taps, _target_ids(stored), features=kind, mask_token=mask_token)
        names, arrangements = eagle3.checkpoint(config.num_layers), eagle3.ARRANGEMENTS
    else:
        head = EagleHead(config, has_bias="fc.bias" in stored)
        names, arrangements = eagle.CHECKPOINT, eagle.ARRANGEMENTS
    family = replace(
        LLAMA, checkpoint=names, other_names=(eagle3.OTHER_NAMES,), arrangements=arrangements
    )
    _read(head, family, folder, stored, loaded.info.dtype, device, heads=config.heads)
    head.share(ends_of(loaded, head.shares, device=device))
    return head.to(device).eval()


def taps_layers(folder: Path) -> bool:
    """Whether `folder` holds an EAGLE-3 head, which reads the inputs of some layers of the
    model."""
    return "norm.weight" in read_entries(folder)


def read_head_config(folder: Path) -> ModelConfig:
    """The configuration of an EAGLE head's Llama layers. Raises CheckpointError if it cannot be
    read."""
    raw = read_json(folder / "config.json")
    return LLAMA.parse_config({**raw, "architectures": ["LlamaForCausalLM"]})


def load_feature_join(folder: Path, loaded: LoadedModel, *, device: str) -> FeatureJoin | None:
    """Load only the part of an EAGLE-3 head that joins the hidden states of several layers into
    features; None for an EAGLE head, which uses the model's outputs as they are.

    Raises the same errors as `load_eagle_head`.
    """
    stored = read_entries(folder)
    if "norm.weight" not in stored:
        return None
    config = replace(read_head_config(folder), max_model_len=loaded.info.max_model_len)
    _check_model(folder, config, loaded)
    taps = _taps(read_json(folder / "config.json"), loaded)
    join = FeatureJoin(config.hidden_size, taps, features=_joined_kind(config, taps, stored))
    names = replace(LLAMA, checkpoint=eagle3.JOIN, other_names=(), arrangements={})
    _read(join, names, folder, stored, loaded.info.dtype, device, heads=config.heads)
    return join.to(device).eval()


def head_bytes(folder: Path, item_bytes: int) -> int:
    """The bytes of all weights of the draft head in `folder`, at `item_bytes` per parameter. Raises
    CheckpointError if there are none."""
    is_medusa = any((folder / name).exists() for name in MEDUSA_FILES)
    entries = _medusa_entries(folder) if is_medusa else read_entries(folder)
    return item_bytes * sum(prod(entry.shape) for entry in entries.values())


def _joined_kind(
    config: ModelConfig, taps: tuple[int, ...], stored: Mapping[str, StoredEntry]
) -> str:
    """A name of the features: which layers they are from, and a fingerprint of the joining weights.
    Features are used only by heads with the same name."""
    joining = {name: entry for name, entry in stored.items() if name.startswith("fc.")}
    return f"layers {taps} joined by {fingerprint(config, joining, '', '').hex()[:16]}"


def load_medusa_heads(folder: Path, loaded: LoadedModel, *, device: str) -> MedusaHeads:
    """Load Medusa heads. Raises CheckpointError if they are incomplete."""
    keys = ConfigKeys(read_json(folder / "config.json"))
    num_layers = keys.count("medusa_num_layers", 1)
    stored = _medusa_entries(folder)
    present = {int(name.partition(".")[0]) for name in stored if name[0].isdigit()}
    num_heads = min(keys.count("medusa_num_heads", len(present)), len(present))
    width, vocab_size = loaded.model.width, loaded.info.vocab_size
    heads = MedusaHeads(
        width,
        vocab_size,
        num_heads=num_heads,
        num_layers=num_layers,
        has_own_heads=f"0.{num_layers}.weight" in stored,
    )
    family = replace(LLAMA, checkpoint=medusa.checkpoint(num_layers), other_names=())
    no_heads = HeadShape(num_heads=1, num_kv_heads=1, head_dim=width)  # they have no attention
    _read(
        heads, family, folder, stored, loaded.info.dtype, device,
        heads=no_heads, num_layers=num_heads,
    )  # fmt: skip
    heads.share(ends_of(loaded, heads.shares, device=device))
    return heads.to(device).eval()


def _read(  # noqa: PLR0913  # what is read, from where, as what
    head: nn.Module,
    names: Family,
    folder: Path,
    stored: Mapping[str, StoredEntry],
    dtype: str,
    device: str,
    *,
    heads: HeadShape,
    num_layers: int = 1,
) -> None:
    """Load the weights of `head`, without quantizing them. Raises CheckpointError with the names of
    missing or misshapen tensors."""
    placements = list(place(head, names, num_layers, stored.keys()))
    layout = parse_layout(read_json(folder / "config.json"))
    entries = as_whole(stored, layout, {placement.source for placement in placements})
    odd = [
        placement.source
        for placement in placements
        if placement.source not in entries or entries[placement.source].shape != placement.shape
    ]
    if odd:
        raise CheckpointError(
            f"{folder}: these tensors are missing or have another shape: {', '.join(odd)}"
        )
    reading = CheckpointReader(heads, placements, entries, None, None)
    for (target, slot), sources in groupby(placements, lambda each: (each.target, each.slot)):
        with reading.assembled(list(sources), dtype_of(head, target, dtype)) as tensor:
            if slot is None:
                install(head, target, tensor, device)
            else:
                install_expert(head, target, slot, tensor, device)


def _check_model(folder: Path, config: ModelConfig, loaded: LoadedModel) -> None:
    found = config.hidden_size, config.vocab_size
    wanted = loaded.model.width, loaded.info.vocab_size
    if found != wanted:
        raise CheckpointError(
            f"{folder}: the head is for a model of width {found[0]} and {found[1]} tokens, and "
            f"this model has {wanted[0]} and {wanted[1]}; use the head that was trained for it"
        )


def _taps(raw: Mapping[str, object], loaded: LoadedModel) -> tuple[int, ...]:
    """The layers whose inputs an EAGLE-3 head reads, from its config.json or else EAGLE-3's
    default: an early, a middle and a late layer. Raises CheckpointError if they are not layers of
    the model, and InvalidConfig for a model with several residual streams."""
    if isinstance(loaded.model, StreamDecoder):
        raise InvalidConfig(
            "speculation.method eagle: an EAGLE-3 head reads one residual stream, and "
            f"{loaded.info.architecture} has several; set the method to suffix or ngram"
        )
    num_layers = loaded.info.num_layers
    said = raw.get("eagle_config")
    taps = said.get("eagle_aux_hidden_state_layer_ids") if isinstance(said, Mapping) else None
    if taps is None:
        taps = [2, num_layers // 2, num_layers - 3]
    if not isinstance(taps, list) or not all(
        isinstance(tap, int) and 0 <= tap < num_layers for tap in taps
    ):
        raise wrong(
            "`eagle_aux_hidden_state_layer_ids` must be layers of the model, of which "
            f"there are {num_layers}, not {taps!r}"
        )
    return tuple(taps)


def _mask_token(
    folder: Path, raw: Mapping[str, object], stored: Mapping[str, StoredEntry], vocab_size: int
) -> int:
    """The mask token of a P-EAGLE head. Raises CheckpointError if the head has none."""
    token = raw.get("ptd_token_id", raw.get("pard_token"))
    if "mask_hidden" not in stored or "norm.weight" not in stored:
        raise CheckpointError(
            f"{folder}: the head was not trained to draft several tokens in one pass, as it has no "
            "`mask_hidden`; set speculation.method to eagle"
        )
    if not isinstance(token, int) or not 0 <= token < vocab_size:
        raise wrong(
            f"`ptd_token_id`, the mask token, must be at least 0 and below {vocab_size}, not "
            f"{token!r}"
        )
    return token


def _target_ids(stored: Mapping[str, StoredEntry]) -> Tensor | None:
    """The model's token by token of the head's smaller vocabulary, [V'] int64; None if both have
    the same vocabulary. The file stores the differences (d2t)."""
    if "d2t" not in stored:
        return None
    further = stored["d2t"].load(torch.int64)
    return further + torch.arange(len(further))


def _medusa_entries(folder: Path) -> Mapping[str, StoredEntry]:
    for name, read in MEDUSA_FILES.items():
        if (folder / name).exists():
            return read(folder / name)
    raise CheckpointError(f"{folder} holds neither {' nor '.join(MEDUSA_FILES)}")
