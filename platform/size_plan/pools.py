"""Which layout each pool takes, and how many replicas: as few accelerators as keep the promise.

prefill    a layout, tokens of a pass    fewest accelerators, then the quickest first token
decode     a layout, places              likewise, then the quickest tokens
mixed      a layout, tokens of a prompt in a step beside those who decode
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from baton.core.errors import InvalidConfig
from baton.engine.checkpoint.deterministic import check_deterministic
from baton.engine.config import SchedulerConfig
from baton.engine.mesh.mesh import Mesh
from baton.platform.doctor.demand import kv_layout, served_dtype
from baton.platform.layout_plan.layout import mesh_name, meshes
from baton.platform.layout_plan.rank_models import rank_models
from baton.platform.planner.capacity import (
    Need,
    ReplicaModel,
    decode_need,
    decode_with,
    max_batch,
    prefill_need,
    prefill_with,
)
from baton.platform.planner.mixed import mixed_need, mixed_with
from baton.platform.size_plan.efficiency import Efficiency
from baton.platform.size_plan.memory import MemoryBudget, budget_of
from baton.platform.size_plan.pass_time import LayoutPasses, layout_shape
from baton.platform.size_plan.question import FRONT_S, Question

PREFILL_CHUNKS = (2048, 8192)
MIXED_CHUNKS = (128, 256, 512, 1024, 2048)
MOST_RUNNING = 1024
MACHINE = 8
"""Devices of the largest machines, on one of which all ranks of an engine are. Of CPUs a device is
a core, and machines have any number."""
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingLayout:
    """A layout that the model takes, and that has room for it."""

    mesh: Mesh
    budget: MemoryBudget
    passes: LayoutPasses

    @property
    def name(self) -> str:
        return mesh_name(self.mesh)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Replicas of one role on a layout."""

    layout: FittingLayout
    model: ReplicaModel
    scheduler: SchedulerConfig
    need: Need
    """Replicas needed; of a mixed pool, for later tokens, while `first` is for its first ones."""
    first: Need | None = None
    is_prefill: bool = False

    @property
    def num_replicas(self) -> int:
        """Replicas as clients count them: each data place is one."""
        return self.need.num_replicas

    @property
    def num_units(self) -> int:
        """Replicas as Ray places them."""
        return -(-self.num_replicas // self.layout.mesh.data)

    @property
    def num_accelerators(self) -> int:
        return self.num_units * self.layout.mesh.size

    @property
    def is_kept(self) -> bool:
        return self.need.is_kept and (self.first is None or self.first.is_kept)

    def at(self, efficiency: Efficiency) -> ReplicaModel:
        return replace(self.model, passes=self.layout.passes.at(efficiency))


def fitting_layouts(question: Question) -> tuple[Sequence[FittingLayout], Sequence[Refusal]]:
    """Layouts on up to so many ranks; with stages only if none fits without."""
    found: list[FittingLayout] = []
    refused: list[Refusal] = []
    meshes_ = list(layouts_of(question))
    for has_stages in (False, True):
        for mesh in meshes_:
            if (mesh.pipeline > 1) is has_stages:
                made = fitting_layout(question, mesh)
                if isinstance(made, FittingLayout):
                    found.append(made)
                else:
                    refused.append(made)
        if found:
            break
    return found, refused


def layouts_of(question: Question) -> Iterator[Mesh]:
    """Layouts to try: without context parallelism, which shortens the longest prompts alone; data
    places only with experts spread over all of them."""
    has_experts = any(layer.moe is not None for layer in question.model.layers)
    size = 1
    while size <= question.max_ranks:
        for mesh in meshes(size):
            is_whole = mesh.size == size and mesh.context == 1
            is_data = mesh.data == 1 or mesh.expert == mesh.data * mesh.tensor
            is_placed = question.accelerator.is_cpu or mesh.size // mesh.data <= MACHINE
            if is_whole and is_data and is_placed and (has_experts or mesh.expert == 1):
                yield mesh
        size *= 2


def fitting_layout(question: Question, mesh: Mesh) -> FittingLayout | Refusal:
    config, model = question.config, question.model
    device = "cpu" if question.accelerator.is_cpu else "cuda"
    dtype = served_dtype(config.dtype, model, device)
    name = mesh_name(mesh)
    layout = kv_layout(config.decode.cache, model, dtype)
    try:
        if config.deterministic:
            check_deterministic(model, device, dtype, mesh)
        models = rank_models(model, layout, mesh, dtype, device=device)
        unstaged = replace(mesh, pipeline=1)
        [rank] = rank_models(model, layout, unstaged, dtype, device=device)
    except InvalidConfig as error:
        return Refusal(name=name, reason=str(error))
    budget = budget_of(
        models,
        question.accelerator,
        question.precision,
        config.decode.cache,
        SchedulerConfig(max_batch_tokens=max(PREFILL_CHUNKS), max_running=MOST_RUNNING),
        is_deterministic=config.deterministic,
    )
    if budget.num_tokens < question.load.held_tokens:
        return Refusal(
            name=name,
            reason=f"{budget.weight_bytes / GIB:.1f} GiB of weights leave KV for "
            f"{budget.num_tokens} tokens, and a request has {question.load.held_tokens:.0f}",
        )
    passes = LayoutPasses(
        layout_shape(models, rank, question.precision),
        question.accelerator,
        question.precision,
        question.efficiencies[1],
    )
    return FittingLayout(mesh=mesh, budget=budget, passes=passes)


def prefill_pools(question: Question, layouts: Iterable[FittingLayout]) -> list[Pool]:
    """The best first."""
    found = []
    for layout in layouts:
        for chunk in PREFILL_CHUNKS:
            model = model_of(layout, chunk, SchedulerConfig().max_running)
            need = prefill_need(question.load, model, question.promise)
            scheduler = SchedulerConfig(max_batch_tokens=chunk)
            found.append(
                Pool(layout=layout, model=model, scheduler=scheduler, need=need, is_prefill=True)
            )
    return sorted(found, key=_order)


def decode_pools(question: Question, layouts: Iterable[FittingLayout]) -> list[Pool]:
    found = []
    for layout in layouts:
        model = model_of(layout, SchedulerConfig().max_batch_tokens, MOST_RUNNING)
        need = decode_need(question.load, model, question.promise)
        places = max(max_batch(question.load, model, question.promise), 1)
        scheduler = SchedulerConfig(max_running=min(places, MOST_RUNNING))
        model = replace(model, max_requests=scheduler.max_running)
        found.append(Pool(layout=layout, model=model, scheduler=scheduler, need=need))
    return sorted(found, key=_order)


def mixed_pools(question: Question, layouts: Iterable[FittingLayout]) -> list[Pool]:
    found = []
    for layout in layouts:
        for chunk in MIXED_CHUNKS:
            model = model_of(layout, chunk, MOST_RUNNING)
            first, later = mixed_need(question.load, model, question.promise)
            places = max(max_batch(question.load, model, question.promise), 1)
            scheduler = SchedulerConfig(
                max_batch_tokens=-(-(chunk + places) // 128) * 128,
                max_running=min(places, MOST_RUNNING),
                prefill_chunk=chunk,
            )
            pool = Pool(layout=layout, model=model, scheduler=scheduler, need=later, first=first)
            found.append(pool)
    return sorted(found, key=_order)


def model_of(layout: FittingLayout, chunk: int, most: int) -> ReplicaModel:
    return ReplicaModel(
        passes=layout.passes,
        max_chunk=chunk,
        num_kv_tokens=layout.budget.num_tokens,
        max_requests=most,
        overhead_s=FRONT_S,
    )


def _order(pool: Pool) -> tuple[bool, int, float]:
    slowest = pool.need.seconds if pool.first is None else pool.first.seconds
    return not pool.is_kept, pool.num_accelerators, slowest


def foreseen(pool: Pool, model: ReplicaModel, question: Question) -> tuple[Need, Need]:
    """The needs of first and of later tokens, were its replicas as `model` says; of a pool that
    does one of both alone, that twice."""
    load, promise, num_replicas = question.load, question.promise, pool.num_replicas
    if pool.first is not None:
        return mixed_with(load, model, promise, num_replicas)
    with_ = prefill_with if pool.is_prefill else decode_with
    found = with_(load, model, promise, num_replicas)
    return found, found
