"""Pipeline parallelism: which layers each stage has, and what a rank leaves out of its model.

    stage 0          the embedding, the first layers
    stage 1 ..       the next layers
    the last         the last layers, the norm after them, the head

Each stage has a run of consecutive layers, chosen so that stages have similar numbers of
parameters. A tied embedding is on the first stage and, as the head, on the last.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import itemgetter

from torch import nn

from baton.core.errors import InvalidConfig
from baton.core.kv_layout import KvLayout
from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import MeshGroups
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.models.skeleton.decoder import Decoder

Stages = tuple[range, ...]
"""The layers of each stage."""


class MissingLayer(nn.Module):
    """Stands for a layer that another stage has."""


def check_stages(config: ModelConfig, mesh: Mesh) -> None:
    """Raise InvalidConfig if there are more stages than layers that a stage may begin with."""
    firsts = first_layers(config)
    if mesh.pipeline > len(firsts):
        raise InvalidConfig(
            f"pipeline parallel {mesh.pipeline}: {len(firsts)} of the {config.num_layers} "
            "layers of this model can be the first of a stage; lower parallel.pipeline"
        )


def first_layers(config: ModelConfig) -> Collection[int]:
    """The layers that a stage may begin with: the first, and all whose only input is the hidden
    state with the residual stream. With sparse attention, a layer without an indexer reuses the
    tokens that an earlier layer has chosen, so it must be on the same stage as that layer."""
    return [
        number
        for number, layer in enumerate(config.layers)
        if number == 0 or config.index is None or layer.has_index
    ]


def spread_layers(model: Decoder, config: ModelConfig, num_stages: int) -> Stages:
    """The layers of each stage, from the numbers of parameters of `model`: the whole model, or a
    tensor rank's."""
    sizes = [_size(block) for block in model.blocks]
    sizes[0] += _size(model.embed) + _size(model.positions)
    sizes[-1] += _size(model.norm) + _size(model.embed if model.head is None else model.head)
    return balanced(sizes, num_stages, first_layers(config))


def balanced(sizes: Sequence[int], num_runs: int, firsts: Collection[int]) -> Stages:
    """Cut `sizes` into `num_runs` runs, each beginning at one of `firsts`, so that the sum of the
    squared run sizes is least. Dynamic programming over the ends of runs."""
    sums = list(accumulate(sizes, initial=0))
    best: dict[int, tuple[int, Stages]] = {0: (0, ())}  # by number of sizes that are in runs
    for _ in range(num_runs):
        begun = {start: found for start, found in best.items() if start in firsts}
        best = {
            stop: min(
                (
                    (cost + (sums[stop] - sums[start]) ** 2, (*runs, range(start, stop)))
                    for start, (cost, runs) in begun.items()
                    if start < stop
                ),
                key=itemgetter(0),
            )
            for stop in range(min(begun) + 1, len(sizes) + 1)
        }
    return best[len(sizes)][1]


def keep_own_stage(model: Decoder, config: ModelConfig, groups: MeshGroups) -> Stages:
    """Leave out of `model` what other stages have, and return the layers of each stage; empty if
    there is one stage. `model` is a tensor rank's, without weights."""
    if groups.mesh.pipeline == 1:
        return ()
    stages = spread_layers(model, config, groups.mesh.pipeline)
    keep_stage(model, stages[groups.place.stage])
    return stages


def keep_stage(model: Decoder, layers: range) -> None:
    """Leave out of `model`, which has no weights yet, all but `layers`, and the embedding, norm and
    head if another stage has them."""
    num_layers, is_tied = len(model.blocks), model.head is None
    for layer in range(num_layers):
        if layer not in layers:
            model.blocks[layer] = MissingLayer()
    model.layers = layers
    is_first, is_last = layers.start == 0, layers.stop == num_layers
    if not is_first:
        model.positions = None
    if not is_first and not (is_last and is_tied):
        del model.embed
    if not is_last:
        model.head = None
        del model.norm


def kv_of_layers(layout: KvLayout, layers: range) -> KvLayout:
    """The layout of the KV of `layers` only, which are numbered from 0 in it."""
    kept = (
        (side, tuple(layer - layers.start for layer in side.layers if layer in layers))
        for side in layout.side_caches
    )
    side_caches = tuple(replace(side, layers=own) for side, own in kept if own)
    return replace(layout, num_layers=len(layers), side_caches=side_caches)


def _size(module: nn.Module | None) -> int:
    return 0 if module is None else sum(each.numel() for each in module.parameters())
