"""Reading the head behind a model's last layer, which predicts one token further."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.files.tensor_files import read_entries
from baton.engine.checkpoint.install import dtype_of, install, install_expert
from baton.engine.checkpoint.load import LoadedModel, read_config
from baton.engine.checkpoint.quantized.methods import as_whole, parse_layout
from baton.engine.checkpoint.reading import CheckpointReader
from baton.engine.models.config.model_config import read_json
from baton.engine.models.registry import family_of
from baton.engine.models.skeleton.mtp import MtpHead, names_of
from baton.engine.sharding.placement import place


def load_mtp_head(folder: Path, loaded: LoadedModel, *, device: str) -> MtpHead:
    """Load the head of a model read from the same folder, whole. Its weights are kept wide.

    Raises CheckpointError if the checkpoint has none, or not all of it.
    """
    config = read_config(folder).serving(loaded.info.max_model_len)
    family = family_of(config.architecture)
    stored = read_entries(folder)
    names = names_of(family, config.num_layers)
    if not family.further_layers or names.checkpoint["join.weight"][0] not in stored:
        raise CheckpointError(f"{folder} has no head that predicts the token after the next")
    head = MtpHead(config, family)
    placements = list(place(head, names, 1, stored.keys()))
    layout = parse_layout(read_json(folder / "config.json"))
    entries = as_whole(stored, layout, {placement.source for placement in placements})
    odd = [
        placement.source
        for placement in placements
        if placement.source not in entries or entries[placement.source].shape != placement.shape
    ]
    if odd:
        raise CheckpointError(f"tensors that are missing, or of another shape: {', '.join(odd)}")
    reading = CheckpointReader(config, placements, entries, None, None)
    for (target, slot), sources in groupby(placements, lambda each: (each.target, each.slot)):
        dtype = dtype_of(head, target, loaded.info.dtype)
        with reading.assembled(list(sources), dtype) as tensor:
            if slot is None:
                install(head, target, tensor, device)
            else:
                install_expert(head, target, slot, tensor, device)
    head.share(loaded.model)
    return head.to(device).eval()
