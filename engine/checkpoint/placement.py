"""Which rows of which parameter of ours each tensor of a checkpoint becomes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from torch import Tensor, nn

from baton.engine.checkpoint.arrangement import AS_IS, Arrangement
from baton.engine.layers.linear import Linear
from baton.engine.models.family import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    source: str
    target: str
    rows: slice
    shape: tuple[int, ...]
    """As it is stored."""
    arrangement: Arrangement


def place(model: nn.Module, family: Family, num_layers: int) -> Iterator[Placement]:
    """Where all parameters of `model` come from, by the names of a whole checkpoint."""
    parameters = dict(model.named_parameters())
    for pattern, patterns in family.checkpoint.items():
        arrangement = family.arrangements.get(pattern, AS_IS)
        for i in range(num_layers if "{i}" in pattern else 1):
            target = pattern.format(i=i)
            if target not in parameters:  # a bias the model has not, or a head that is tied
                continue
            module = model.get_submodule(target.rpartition(".")[0])
            sources = [source.format(i=i) for source in patterns]
            for source, rows in zip(
                sources, _rows(module, parameters[target], len(sources)), strict=True
            ):
                shape = (rows.stop - rows.start, *parameters[target].shape[1:])
                yield Placement(
                    source=source,
                    target=target,
                    rows=rows,
                    shape=arrangement.stored_shape(shape),
                    arrangement=arrangement,
                )


def _rows(module: nn.Module, parameter: Tensor, num_sources: int) -> Iterator[slice]:
    """Those of each source: all of one, or one of the matrices that are stacked."""
    counts: tuple[int, ...] = (parameter.shape[0],)
    if isinstance(module, Linear) and num_sources > 1:
        counts = module.rows
    first = 0
    for num_rows in counts:
        yield slice(first, first + num_rows)
        first += num_rows


def find_sources(
    placements: list[Placement], names: Collection[str], base_prefix: str
) -> list[Placement]:
    """The same from a checkpoint of the model without its head, whose names lack the prefix."""

    def find(source: str) -> str:
        bare = source.removeprefix(base_prefix)
        return bare if source not in names and bare in names else source

    return [replace(placement, source=find(placement.source)) for placement in placements]
