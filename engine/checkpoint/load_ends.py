"""Loads the whole embedding and the whole output head of a model (its two ends) on the lead rank,
where they are split among ranks.

tensor ranks    each has rows of both     pipeline stages    the first has one, the last the other

A draft head uses both between passes, on the lead rank only. Getting them from the other ranks
would take two messages per token.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby

import torch
from torch import nn

from baton.engine.checkpoint.install import dtype_of, install
from baton.engine.checkpoint.load import LoadedModel, plan_weights
from baton.engine.checkpoint.quantized.installer import QuantizedInstaller
from baton.engine.checkpoint.reading import CheckpointReader
from baton.engine.mesh.mesh import Mesh
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.heads.draft_head import End
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.sharding.cutting import splits_vocabulary


def ends_of(loaded: LoadedModel, wanted: Collection[End], *, device: str) -> Decoder:
    """A model that embeds tokens and computes logits, whichever of the two is in `wanted`, without
    other ranks: `loaded.model` itself if this rank has both ends whole; otherwise one with only
    these parts, which are read again."""
    if not wanted or loaded.groups.mesh.size == 1:
        return loaded.model
    config, ends, entries, placements = plan_weights(loaded.folder, loaded.load_format)
    if has_ends(config, loaded.groups.mesh):
        return loaded.model
    keep_ends(ends, wanted)
    targets = {name for name, _ in ends.named_parameters()}
    placements = [placement for placement in placements if placement.target in targets]
    found = {placement.source: entries[placement.source] for placement in placements}
    dtype, quantize = loaded.info.dtype, loaded.info.quantize
    reading = CheckpointReader(config.heads, placements, found, None, None)
    installer = QuantizedInstaller(placements, found, getattr(torch, dtype), device, quantize)
    for target, sources in groupby(placements, lambda each: each.target):
        of_target = list(sources)
        if not installer.install(ends, target, of_target):
            with reading.assembled(of_target, dtype_of(ends, target, dtype)) as tensor:
                install(ends, target, tensor, device, quantize)
    return ends.to(device).eval()


def keep_ends(model: Decoder, wanted: Collection[End]) -> None:
    """Remove all but the wanted ends from a whole model that has no weights yet."""
    model.blocks = nn.ModuleList()
    model.positions = None
    del model.norm
    if "embed" not in wanted and model.head is not None:  # a tied embedding is also the head
        del model.embed
    if "head" not in wanted:
        model.head = None


def has_ends(config: ModelConfig, mesh: Mesh) -> bool:
    """Whether every rank has the whole embedding and the whole head."""
    is_split = mesh.tensor > 1 and splits_vocabulary(config, mesh.tensor)
    return mesh.pipeline == 1 and not is_split
