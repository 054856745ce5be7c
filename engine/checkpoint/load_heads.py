"""Reading the heads that guess a model's next tokens: its own MTP head, EAGLE's, Medusa's.

MTP       the layer behind the last of the model's own folder
EAGLE     a folder of its own: fc, layers.0           embedding and head are the model's
EAGLE-3   the same: fc, midlayer, norm, lm_head, d2t  only the embedding is
P-EAGLE   the same, with mask_hidden                  the token of masks is in config.json
Medusa    a folder of its own: medusa_lm_head.pt      heads of their own, or the model's
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
    """Load the head of a model read from the same folder, whole. Its weights are kept wide.

    Raises CheckpointError if the checkpoint has none, or not all of it.
    """
    config = read_config(folder).serving(loaded.info.max_model_len)
    family = family_of(config.architecture)
    stored = read_entries(folder)
    names = names_of(family, config.num_layers)
    if not family.further_layers or names.checkpoint["join.first.weight"][0] not in stored:
        raise CheckpointError(f"{folder} has no head that predicts the token after the next")
    head = MtpHead(config, family)
    _read(head, names, folder, stored, loaded.info.dtype, device, heads=config.heads)
    head.share(ends_of(loaded, head.shares, device=device))
    return head.to(device).eval()


def load_eagle_head(
    folder: Path, loaded: LoadedModel, *, device: str, is_parallel: bool = False
) -> EagleHead | Eagle3Head:
    """Load a head trained for a model, of the first EAGLE or the third, whichever lies there.
    `is_parallel`: of the third, one that guesses several tokens at once (P-EAGLE).

    Raises CheckpointError if it is of another model, or not whole, and InvalidConfig for a model
    of another kind than it can read.
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
    """Whether the head in `folder` is of EAGLE-3, which reads what enters layers."""
    return "norm.weight" in read_entries(folder)


def read_head_config(folder: Path) -> ModelConfig:
    """The configuration of an EAGLE head's Llama layers. Raises CheckpointError if it cannot be
    read."""
    raw = read_json(folder / "config.json")
    return LLAMA.parse_config({**raw, "architectures": ["LlamaForCausalLM"]})


def load_feature_join(folder: Path, loaded: LoadedModel, *, device: str) -> FeatureJoin | None:
    """Load of a head of EAGLE-3 what joins the layers that it reads, and nothing else; None of a
    head of the first EAGLE, which takes what the model gives.

    Raises CheckpointError if it is of another model, or not whole, and InvalidConfig for a model
    of another kind than it can read.
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
    """What the weights there take, of any head, in items of so many bytes. Raises CheckpointError
    if there are none."""
    is_medusa = any((folder / name).exists() for name in MEDUSA_FILES)
    entries = _medusa_entries(folder) if is_medusa else read_entries(folder)
    return item_bytes * sum(prod(entry.shape) for entry in entries.values())


def _joined_kind(
    config: ModelConfig, taps: tuple[int, ...], stored: Mapping[str, StoredEntry]
) -> str:
    """The kind of features: of which layers, joined by which weights."""
    joining = {name: entry for name, entry in stored.items() if name.startswith("fc.")}
    return f"layers {taps} joined by {fingerprint(config, joining, '', '').hex()[:16]}"


def load_medusa_heads(folder: Path, loaded: LoadedModel, *, device: str) -> MedusaHeads:
    """Load heads trained for a model. Raises CheckpointError if they are not whole."""
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
    no_heads = HeadShape(num_heads=1, num_kv_heads=1, head_dim=width)  # it attends to nothing
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
    """Give `head` its weights, kept wide. Raises CheckpointError, naming what does not fit."""
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
            f"{folder}: tensors that are missing, or of another shape: {', '.join(odd)}"
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
            f"{folder}: a head for a model of width {found[0]} and {found[1]} tokens, and this "
            f"has {wanted[0]} and {wanted[1]}; take the one that was trained for it"
        )


def _taps(raw: Mapping[str, object], loaded: LoadedModel) -> tuple[int, ...]:
    """The layers before which the model's stream is read, where `config.json` does not say so."""
    if isinstance(loaded.model, StreamDecoder):
        raise InvalidConfig(
            f"speculation.method eagle: a head of EAGLE-3 reads one residual stream, and "
            f"{loaded.info.architecture} has several; take suffix or ngram"
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
    """The token that masks are. Raises CheckpointError if the head knows no masks."""
    token = raw.get("ptd_token_id", raw.get("pard_token"))
    if "mask_hidden" not in stored or "norm.weight" not in stored:
        raise CheckpointError(
            f"{folder}: a head that was not trained to guess several tokens at once: it has no "
            "`mask_hidden`; set speculation.method to eagle"
        )
    if not isinstance(token, int) or not 0 <= token < vocab_size:
        raise wrong(
            f"`ptd_token_id`, the token of masks, must be one of {vocab_size}, not {token!r}"
        )
    return token


def _target_ids(stored: Mapping[str, StoredEntry]) -> Tensor | None:
    """[V'] The model's tokens by those of the head, of which the file has the differences."""
    if "d2t" not in stored:
        return None
    further = stored["d2t"].load(torch.int64)
    return further + torch.arange(len(further))


def _medusa_entries(folder: Path) -> Mapping[str, StoredEntry]:
    for name, read in MEDUSA_FILES.items():
        if (folder / name).exists():
            return read(folder / name)
    raise CheckpointError(f"{folder} holds neither {' nor '.join(MEDUSA_FILES)}")
