"""Configuration of a pool: its number of replicas, and what each of them gets.

    resources          what Ray reserves for a replica
    placement          on which nodes
    parallel           its ranks, along each axis
    cache, scheduler   of its engine

Part of the tree in config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from baton.core.config_node import ConfigNode, Count, NonNegative
from baton.core.errors import InvalidConfig
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculationConfig
from baton.engine.mesh.mesh import Mesh

ROUNDING = 1e-6
"""Tolerance for sums of GPU shares, which are floats."""


class ResourcesConfig(ConfigNode, frozen=True, kw_only=True):
    """Resources of one replica."""

    num_cpus: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """CPUs that Ray reserves for it; `num_threads` sets its threads."""
    num_gpus: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """GPUs that Ray reserves for it, or a fraction of one."""
    num_threads: NonNegative = 0
    """Compute threads on a CPU. 0: its share of the machine's cores; where operators are not
    compiled, one core is left to the gateway."""
    numa: Literal["auto", "off"] = "auto"
    """Pinning on a machine with several NUMA nodes. `auto`: each rank's threads are pinned to as
    few nodes as hold them, next to their memory, physical cores before hyperthreads; ranks are
    spread over the nodes. No effect with one node."""


class PlacementConfig(ConfigNode, frozen=True, kw_only=True):
    """The nodes on which replicas may run. Without settings, Ray chooses."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Node labels (`ray start --labels`), each with its required value in the syntax of Ray's label
    selectors: `a`, `!a`, `in(a,b)`, `!in(a,b)`."""
    max_per_node: Count | None = None
    """The most replicas on one node. Empty: as many as its resources allow."""

    def admits(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels may be used."""
        return all(_fits(labels.get(key), wanted) for key, wanted in self.labels.items())


class ParallelConfig(ConfigNode, frozen=True, kw_only=True):
    """The ranks of one replica: processes, each with a device and a share of the model."""

    tensor: Count = 1
    """Tensor-parallel ranks, all on one node. Each rank reserves `resources`."""
    pipeline: Count = 1
    """Pipeline stages, all on one node, each with some of the layers and `tensor` ranks. A pass is
    cut into micro-batches: see `scheduler.micro_batch_tokens`."""
    context: Count = 1
    """Context-parallel ranks, which share the tokens of long prompts, all on one node, each with
    the whole model and a copy of all KV; times `tensor`. Only for the pool that computes
    prompts."""
    data: Count = 1
    """Data-parallel engines that share experts only: each has its own scheduler, cache and
    requests, and counts as a replica. Each is on one node and has `tensor` ranks; `expert` must be
    `data` times `tensor`."""
    expert: Count = 1
    """Expert-parallel ranks, each with some whole experts: `tensor`, or `tensor` times `data`. 1:
    each rank has a slice of every expert."""
    redundant_experts: NonNegative = 0
    """Additional experts on each of these ranks: copies of busy experts, which share their load."""
    rebalance_passes: NonNegative = 0
    """Forward passes after which experts are moved to balance the ranks' loads, while requests run.
    0: never."""

    def __post_init__(self) -> None:
        try:
            mesh = self.mesh
        except InvalidConfig as error:
            raise ValueError(str(error)) from None
        for name in ("redundant_experts", "rebalance_passes"):
            if getattr(self, name) and mesh.expert == 1:
                raise ValueError(f"{name} needs expert parallelism; set expert above 1")

    @property
    def mesh(self) -> Mesh:
        """The mesh of ranks. Raises InvalidConfig for incompatible sizes."""
        return Mesh(
            tensor=self.tensor,
            context=self.context,
            pipeline=self.pipeline,
            data=self.data,
            expert=self.expert,
            redundant_experts=self.redundant_experts,
        )

    @property
    def size(self) -> int:
        """Ranks of one replica."""
        return self.mesh.size


class PoolConfig(ConfigNode, frozen=True, kw_only=True):
    """The replicas of one role."""

    replicas: NonNegative = 1
    """Replicas of this role. With 0 prefill replicas, decode replicas compute prompts."""
    resources: ResourcesConfig = ResourcesConfig()
    placement: PlacementConfig = PlacementConfig()
    parallel: ParallelConfig = ParallelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()

    def __post_init__(self) -> None:
        if self.placement.max_per_node is not None and self.parallel.size > 1:
            raise ValueError(
                "placement.max_per_node applies only to replicas of one rank, since Ray places "
                "several ranks as a group; leave it empty"
            )

    def engines_on(self, num_cpus: float, num_gpus: float) -> int:
        """Engines that fit on a node with these resources; an engine is on one node."""
        asked = ((num_cpus, self.resources.num_cpus), (num_gpus, self.resources.num_gpus))
        ranks = self.parallel.size // self.parallel.data
        engines = min(int(there / (each * ranks) + ROUNDING) for there, each in asked if each)
        return min(engines, self.placement.max_per_node or engines)

    def places_on(self, num_cpus: float, num_gpus: float, *, num_nodes: int = 1) -> int:
        """Replicas that fit on `num_nodes` nodes with these resources each. A replica's
        `parallel.data` engines may be on different nodes."""
        return self.engines_on(num_cpus, num_gpus) * num_nodes // self.parallel.data

    @property
    def num_engines(self) -> int:
        """Engines of the pool; each counts as a replica to clients, and has its own tiers."""
        return self.replicas * self.parallel.data

    @property
    def engine(self) -> EngineConfig:
        return self._engine(SpeculationConfig())

    def _engine(self, speculation: SpeculationConfig) -> EngineConfig:
        return EngineConfig(
            cache=self.cache,
            scheduler=self.scheduler,
            speculation=speculation,
            rebalance_passes=self.parallel.rebalance_passes,
        )


def _fits(value: str | None, wanted: str) -> bool:
    """Whether a label fits a selector, as in Ray: a missing label fits `!a` and not `a`."""
    is_refusal, wanted = wanted.startswith("!"), wanted.removeprefix("!")
    if wanted.startswith("in(") and wanted.endswith(")"):
        among = [one.strip() for one in wanted[3:-1].split(",")]
    else:
        among = [wanted]
    return (value in among) != is_refusal


class PrefillConfig(PoolConfig, frozen=True, kw_only=True):
    """Replicas that compute prompts."""

    max_queued_tokens: Count = 32_768
    """Most prompt tokens queued on one replica; further prompts are refused at once. A prompt is
    always accepted by an empty replica."""


class DecodeConfig(PoolConfig, frozen=True, kw_only=True):
    """Replicas that generate tokens."""

    max_open: Count = 128
    """Most requests on one replica at a time; further ones wait at the gateways."""
    speculation: SpeculationConfig = SpeculationConfig()

    @property
    def engine(self) -> EngineConfig:
        return self._engine(self.speculation)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replicas == 0:
            raise ValueError("decode.replicas must be at least 1: every request ends on one")
