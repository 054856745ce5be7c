"""Which rows of which model parameter each tensor of a checkpoint becomes.

target <- sources, stacked        a matrix and its parts                        {i} counts layers
target <- sources with {e}        a tensor or two of each expert of a layer     {e} counts experts
target <- a source without {e}    all experts of a layer, stacked in one tensor
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import nn

from baton.engine.layers.linear import Linear
from baton.engine.layers.moe import Experts
from baton.engine.models.config.arrangement import AS_IS, Arrangement
from baton.engine.models.skeleton.family import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPlacement:
    """One tensor of a checkpoint, or one expert of it, and where it goes in the model."""

    source: str
    """Name of the tensor in the checkpoint."""
    target: str
    """Name of the model's parameter."""
    rows: slice
    """The rows of `target` (of one expert, if it holds experts) that the source becomes."""
    shape: tuple[int, ...]
    """Shape of the tensor as it is stored."""
    arrangement: Arrangement
    """How the stored tensor is converted to the layout of the parameter."""
    expert: int | None = None
    """The expert that the source is a part of, if the target holds all experts."""
    is_of_stack: bool = False
    """Whether the source holds all experts, stacked."""
    slot: int | None = None
    """Index of that expert in the target of this rank."""


def place(
    model: nn.Module, family: Family, num_layers: int, names: Collection[str] = ()
) -> Iterator[WeightPlacement]:
    """The placements of all parameters of `model`, with the source names of a whole checkpoint.

    `names` are the tensors that the checkpoint has. They decide between the naming schemes of a
    family that has several.
    """
    parameters = dict(model.named_parameters())
    for pattern in family.checkpoint:
        arrangement = family.arrangements.get(pattern, AS_IS)
        for i in range(num_layers if "{i}" in pattern else 1):
            target = pattern.format(i=i)
            if target not in parameters:  # a bias the model does not have, or a tied head
                continue
            patterns = _patterns_of(family, pattern, i, names)
            module = model.get_submodule(target.rpartition(".")[0])
            shape = tuple(parameters[target].shape)
            if isinstance(module, Experts):
                yield from _place_experts(patterns, i, target, shape, arrangement)
                continue
            sources = [source.format(i=i) for source in patterns]
            every = zip(patterns, sources, _rows(module, shape, len(sources)), strict=True)
            for part, source, rows in every:
                of_part = family.arrangements.get(part, arrangement)
                yield WeightPlacement(
                    source=source,
                    target=target,
                    rows=rows,
                    shape=of_part.stored_shape((rows.stop - rows.start, *shape[1:])),
                    arrangement=of_part,
                )


def _patterns_of(
    family: Family, pattern: str, layer: int, names: Collection[str]
) -> tuple[str, ...]:
    """The source patterns from the first naming scheme whose names the checkpoint has, or else from
    the family's first scheme."""
    tables = (family.checkpoint, *family.other_names)
    known = [table[pattern] for table in tables if pattern in table]
    for patterns in known:
        first = patterns[0].format(i=layer, e=0)
        if first in names or first.removeprefix(family.base_prefix) in names:
            return patterns
    return known[0]


def _place_experts(
    patterns: Sequence[str],
    layer: int,
    target: str,
    shape: tuple[int, ...],
    arrangement: Arrangement,
) -> Iterator[WeightPlacement]:
    """Placements expert by expert, so that only one expert at a time is in memory twice."""
    num_experts, num_rows, *tail = shape
    each = num_rows // len(patterns)
    stored = arrangement.stored_shape((each, *tail))
    for expert in range(num_experts):
        for part, pattern in enumerate(patterns):
            is_of_stack = "{e}" not in pattern
            yield WeightPlacement(
                source=pattern.format(i=layer, e=expert),
                target=target,
                rows=slice(part * each, (part + 1) * each),
                shape=(num_experts, *stored) if is_of_stack else stored,
                arrangement=arrangement,
                expert=expert,
                is_of_stack=is_of_stack,
                slot=expert,
            )


def _rows(module: nn.Module, shape: Sequence[int], num_sources: int) -> Iterator[slice]:
    """The target's rows for each source: all rows if there is one source, otherwise those of each
    of the stacked matrices."""
    counts: tuple[int, ...] = (shape[0],)
    if isinstance(module, Linear) and num_sources > 1:
        counts = module.rows
    first = 0
    for num_rows in counts:
        yield slice(first, first + num_rows)
        first += num_rows


def find_sources(
    placements: list[WeightPlacement], names: Collection[str], base_prefix: str
) -> list[WeightPlacement]:
    """The placements, with `base_prefix` removed from source names that the checkpoint only has
    without it: it was saved from the base model, without the head."""

    def find(source: str) -> str:
        bare = source.removeprefix(base_prefix)
        return bare if source not in names and bare in names else source

    return [replace(placement, source=find(placement.source)) for placement in placements]
