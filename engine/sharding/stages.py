"""Which layers each stage of a pipeline has, and what a rank leaves out of its model for that.

    stage 0          the embedding, the first layers
    stage 1 ..       the next layers
    the last         the last layers, the norm behind them, the head

A run of layers each, so that all stages have nearly as many bytes. A table that is embedding and
head in one is with the first stage and with the last.
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
"""The layers of each."""


class MissingLayer(nn.Module):
    """A layer that another stage has."""


def check_stages(config: ModelConfig, mesh: Mesh) -> None:
    """Raises InvalidConfig if there is no layer for one of them to begin with."""
    firsts = first_layers(config)
    if mesh.pipeline > len(firsts):
        raise InvalidConfig(
            f"pipeline parallel {mesh.pipeline}: of the {config.num_layers} layers of this model "
            f"{len(firsts)} can be the first of a stage"
        )


def first_layers(config: ModelConfig) -> Collection[int]:
    """The layers that a stage may begin with: the first, and all that are given nothing but x, and
    the residual stream beside it. Others read what an earlier one has chosen to attend to."""
    return [
        number
        for number, layer in enumerate(config.layers)
        if number == 0 or config.index is None or layer.has_index
    ]


def spread_layers(model: Decoder, config: ModelConfig, num_stages: int) -> Stages:
    """The stages of a whole model, or of what a tensor rank has of it, by its sizes alone."""
    sizes = [_size(block) for block in model.blocks]
    sizes[0] += _size(model.embed) + _size(model.positions)
    sizes[-1] += _size(model.norm) + _size(model.embed if model.head is None else model.head)
    return balanced(sizes, num_stages, first_layers(config))


def balanced(sizes: Sequence[int], num_runs: int, firsts: Collection[int]) -> Stages:
    """Cut into so many runs, each begun by one of `firsts`, that the squares of their sums are
    least when added."""
    sums = list(accumulate(sizes, initial=0))
    best: dict[int, tuple[int, Stages]] = {0: (0, ())}  # keyed by how many of the sizes are in runs
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
    """What each stage has, if they are several; `model` is a tensor rank's, without weights."""
    if groups.mesh.pipeline == 1:
        return ()
    stages = spread_layers(model, config, groups.mesh.pipeline)
    keep_stage(model, stages[groups.place.stage])
    return stages


def keep_stage(model: Decoder, layers: range) -> None:
    """Leave out of a model, which has no weights yet, what other stages have."""
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
    """What is kept of those; they are counted from 0."""
    kept = (
        (side, tuple(layer - layers.start for layer in side.layers if layer in layers))
        for side in layout.side_caches
    )
    side_caches = tuple(replace(side, layers=own) for side, own in kept if own)
    return replace(layout, num_layers=len(layers), side_caches=side_caches)


def _size(module: nn.Module | None) -> int:
    return 0 if module is None else sum(each.numel() for each in module.parameters())
