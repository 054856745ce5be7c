"""Puts the adapters' matrices beside the linear layers of a model, or of one rank's part of it.

    A [r, inputs], B [outputs, r] of a checkpoint's layer  ->  D, U of the (stacked) matrix it is in

Layers are found by their names in the base model's checkpoint. Rows of B are rearranged and cut as
those of the weight are; where a rank has some inputs of a layer, columns of A are cut. The ranks of
all adapters of a layer are made equal, by zeros.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from baton.core.errors import CheckpointError
from baton.engine.checkpoint.adapters.peft_folder import LayerUpdate, PeftAdapter, read_adapter
from baton.engine.layers.adapted import AdapterUpdates
from baton.engine.layers.attention import HeadShape
from baton.engine.layers.linear import ExactLinear, Linear
from baton.engine.mesh.split import Split
from baton.engine.models.config.arrangement import TRANSPOSED
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.registry import family_of
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.sharding.cutting import Cutter
from baton.engine.sharding.placement import WeightPlacement
from baton.kernels.products.low_rank import LowRank

NO_ADAPTERS: Mapping[str, Path] = {}
WEIGHT = ".weight"


@dataclass(frozen=True, slots=True)
class PlacedUpdate:
    """An adapter's update of one tensor of the checkpoint."""

    adapter: int
    """Its index."""
    update: LayerUpdate
    placement: WeightPlacement
    """Where the weight that it belongs to goes."""
    parts: Sequence[int]
    """The stacked matrices of the layer that the tensor holds: one of them, or all."""


class PlacedAdapters:
    """All adapters of a model, and the layers that they change."""

    def __init__(
        self,
        adapters: Sequence[PeftAdapter],
        updates: Mapping[str, Sequence[PlacedUpdate]],
        heads: HeadShape,
    ) -> None:
        """`updates` by the name of the model's layer; `heads` are the whole model's."""
        self._adapters = adapters
        self._updates = updates
        self._heads = heads

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(adapter.name for adapter in self._adapters)

    @property
    def fingerprints(self) -> tuple[bytes, ...]:
        return tuple(adapter.fingerprint for adapter in self._adapters)

    def install(
        self, model: Decoder, cutter: Cutter | None, dtype: torch.dtype, device: str
    ) -> None:
        """Load the updates of the layers that `model` has: the whole model or a rank's. Call before
        weights are installed, as a layer that is adapted keeps its weight for a plain product, also
        if it gates."""
        behind = f"blocks.{len(model.blocks) - 1}.ffn." if model.narrows_last_layer else None
        layers = dict(model.named_modules())
        model.adapters.exist = bool(self._adapters)
        for name, updates in self._updates.items():
            layer = layers.get(name)
            if layer is None:  # of another pipeline stage
                continue
            assert isinstance(layer, Linear)
            layer.is_gated = False
            layer.adapted = AdapterUpdates(
                self._stacked(layer, updates, cutter, dtype, device),
                model.adapters,
                takes_outputs=behind is not None and name.startswith(behind),
            )

    def _stacked(
        self,
        layer: Linear,
        placed: Sequence[PlacedUpdate],
        cutter: Cutter | None,
        dtype: torch.dtype,
        device: str,
    ) -> LowRank:
        rank = max(each.update.rank for each in placed)
        parts, width = layer.rows, layer.weight.shape[1]
        starts = list(accumulate(parts, initial=0))
        down = torch.zeros(len(self._adapters), len(parts), rank, width, dtype=dtype)
        up = torch.zeros(len(self._adapters), rank, sum(parts), dtype=dtype)
        for each in placed:
            a, b = self._matrices(each, layer, cutter)
            row = 0
            for part in each.parts:
                columns = slice(starts[part], starts[part + 1])
                down[each.adapter, part, : len(a)] = a
                up[each.adapter, : len(a), columns] = b[row : row + parts[part]].T
                row += parts[part]
        return LowRank(down.to(device), up.to(device), parts)

    def _matrices(
        self, placed: PlacedUpdate, layer: Linear, cutter: Cutter | None
    ) -> tuple[Tensor, Tensor]:
        """A [r, inputs] and scaled B [outputs, r] of this rank, float32."""
        update, placement = placed.update, placed.placement
        a, b = update.down.load(torch.float32), update.up.load(torch.float32) * update.scale
        if placement.arrangement != TRANSPOSED:  # which is of the weight alone
            b = placement.arrangement.ours(b, self._heads)
        if cutter is not None and layer.split is Split.INPUTS:
            a = cutter.cut(placement, a)
        elif cutter is not None:
            b = cutter.cut(placement, b)
        return a, b


def place_adapters(
    folders: Mapping[str, Path],
    model: Decoder,
    config: ModelConfig,
    placements: Sequence[WeightPlacement],
) -> PlacedAdapters:
    """Read the adapters' folders, by the names in requests and in the order of these, and find the
    layers that they change; `model` and `placements` are those of the whole model.

    Raises CheckpointError, naming adapter and layer, for a layer that the model does not have, that
    has another shape, or that takes no adapters.
    """
    base_prefix = family_of(config.architecture).base_prefix
    by_layer = {
        placement.source.removesuffix(WEIGHT): placement
        for placement in placements
        if placement.source.endswith(WEIGHT)
    }
    short = {layer.removeprefix(base_prefix): found for layer, found in by_layer.items()}
    adapters = [read_adapter(name, folder) for name, folder in sorted(folders.items())]
    updates: defaultdict[str, list[PlacedUpdate]] = defaultdict(list)
    for number, adapter in enumerate(adapters):
        for update in adapter.updates:
            found = by_layer.get(update.layer) or short.get(update.layer)
            try:
                if found is None:
                    raise CheckpointError("the model has no such layer; is it of another model?")
                name = found.target.removesuffix(WEIGHT)
                parts = _parts_of(found, _checked(update, model, name, found).rows)
            except CheckpointError as error:
                raise CheckpointError(
                    f"adapter `{adapter.name}`: {update.layer}: {error}"
                ) from error
            updates[name].append(PlacedUpdate(number, update, found, parts))
    return PlacedAdapters(adapters, updates, config.heads)


def _checked(update: LayerUpdate, model: Decoder, name: str, placement: WeightPlacement) -> Linear:
    """The layer called `name`, if it can have the update."""
    layer = model.get_submodule(name)
    if not isinstance(layer, Linear) or isinstance(layer, ExactLinear) or layer is model.head:
        raise CheckpointError(
            "adapters change linear layers of attention and feed-forward alone; train it without "
            "embeddings, output head, routers, experts and the KV expansion of MLA"
        )
    outputs = placement.rows.stop - placement.rows.start
    wanted = [outputs, layer.weight.shape[1]]
    found = [update.up.shape[0], update.down.shape[1]]
    if found != wanted:
        raise CheckpointError(f"B A is {found}, and the layer {wanted}; is it of another model?")
    return layer


def _parts_of(placement: WeightPlacement, rows: Sequence[int]) -> Sequence[int]:
    if placement.rows == slice(0, sum(rows)):
        return range(len(rows))
    return [list(accumulate(rows, initial=0)).index(placement.rows.start)]
