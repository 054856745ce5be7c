"""The mesh of a replica's ranks: their coordinates and groups along each axis.

    tensor     ranks that share every matrix and every head         talk most, twice a layer
    context    ranks that share the tokens of a prompt              once a layer
    data       ranks that share the requests                        where experts are
    pipeline   ranks that share the layers: stages                  talk least, once a stage
    engine     ranks of one data place: one scheduler, one cache, requests of their own

    rank = ((stage * data + d) * context + c) * tensor + t          most traffic between neighbours

Experts are spread over `expert` neighbours of one stage, or, if it is 1, cut like other matrices.

    data 2, tensor 2      expert 1  each expert cut in two, by both tensor groups
                          expert 2  half of the experts a rank, in both tensor groups
                          expert 4  a quarter of them a rank
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from baton.core.errors import InvalidConfig


class Axis(Enum):
    TENSOR = "tensor"
    CONTEXT = "context"
    DATA = "data"
    PIPELINE = "pipeline"
    EXPERT = "expert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The coordinates of one rank."""

    tensor: int = 0
    context: int = 0
    data: int = 0
    stage: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Raises InvalidConfig for incompatible sizes."""

    tensor: int = 1
    context: int = 1
    data: int = 1
    pipeline: int = 1
    expert: int = 1
    redundant_experts: int = 0
    """Additional expert slots of each rank, for copies."""

    def __post_init__(self) -> None:
        sizes = {axis: getattr(self, axis.value) for axis in Axis}
        for axis, size in sizes.items():
            if size < 1:
                raise InvalidConfig(f"{axis.value} parallel {size}: at least 1")
        if self.expert > 1 and (self.expert % self.tensor or self._stage_size % self.expert):
            fitting = [
                size
                for size in range(self.tensor, self._stage_size + 1, self.tensor)
                if self._stage_size % size == 0
            ]
            raise InvalidConfig(
                f"expert parallel {self.expert}: experts are spread over whole tensor groups of "
                f"one stage; with tensor {self.tensor}, context {self.context} and data "
                f"{self.data} it can be {', '.join(map(str, sorted({1, *fitting})))}"
            )

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.pipeline * self._stage_size

    @property
    def has_whole_models(self) -> bool:
        """Whether each rank has the whole model and all KV."""
        return self.size == self.context

    @property
    def has_steady_passes(self) -> bool:
        """Whether communication in a pass depends only on its shape, so that it can be captured:
        all-reduces over tensor ranks, or none."""
        return self.size in (self.context, self.tensor)

    @property
    def num_expert_places(self) -> int:
        """Data places whose rows reach one rank's experts; with an even load it computes 1/`expert`
        of them."""
        return max(self.expert // (self.tensor * self.context), 1)

    @property
    def _stage_size(self) -> int:
        return self.data * self.context * self.tensor

    def place(self, rank: int) -> Place:
        rest, tensor = divmod(rank, self.tensor)
        rest, context = divmod(rest, self.context)
        stage, data = divmod(rest, self.data)
        return Place(tensor=tensor, context=context, data=data, stage=stage)

    def rank_at(self, place: Place) -> int:
        data = place.stage * self.data + place.data
        return (data * self.context + place.context) * self.tensor + place.tensor

    def members(self, axis: Axis, rank: int) -> tuple[int, ...]:
        """The group of `rank` along one axis, in order."""
        if axis is Axis.EXPERT:
            first = rank // self.expert * self.expert
            return tuple(range(first, first + self.expert))
        stride, size = self._stride(axis), getattr(self, axis.value)
        first = rank - rank // stride % size * stride
        return tuple(range(first, first + size * stride, stride))

    def engine_members(self, rank: int) -> tuple[int, ...]:
        """The ranks of one data place, in order."""
        data = self.place(rank).data
        return tuple(each for each in range(self.size) if self.place(each).data == data)

    @property
    def leads(self) -> tuple[int, ...]:
        """The first rank of each engine."""
        return tuple(self.rank_at(Place(data=data)) for data in range(self.data))

    @property
    def engine(self) -> Mesh:
        """The mesh of one data place, ignoring experts."""
        return replace(self, data=1, expert=1, redundant_experts=0)

    def check_data(self) -> None:
        """Raises InvalidConfig if data places share no experts, or combine with pipeline or context
        ranks."""
        if self.data == 1:
            return
        asked = f"data parallel {self.data}"
        if self.expert != self._stage_size:
            raise InvalidConfig(
                f"{asked}: data ranks share experts and nothing else: set expert to "
                f"{self._stage_size}, all ranks of a stage, or use more replicas"
            )
        if self.pipeline > 1 or self.context > 1:
            raise InvalidConfig(
                f"{asked}: with pipeline {self.pipeline} and context {self.context} engines would "
                "have to agree on how each cuts its passes, too; use tensor ranks, or more replicas"
            )

    def _stride(self, axis: Axis) -> int:
        match axis:
            case Axis.TENSOR:
                return 1
            case Axis.CONTEXT:
                return self.tensor
            case Axis.DATA:
                return self.context * self.tensor
            case _:
                return self._stage_size
