"""What is configured of one pool: how many replicas it has, and what each of them is given.

    resources          what Ray sets aside for a replica
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
"""Shares of a GPU are floats: ten tenths are one."""


class ResourcesConfig(ConfigNode, frozen=True, kw_only=True):
    """What one replica asks of Ray."""

    num_cpus: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """CPUs that Ray counts for it; threads are another matter."""
    num_gpus: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """GPUs, or a share of one."""
    num_threads: NonNegative = 0
    """Threads on a CPU. 0: its share of the machine's cores, less one core for the gateway where
    no operators are compiled."""
    numa: Literal["auto", "off"] = "auto"
    """On a CPU with several NUMA nodes, threads stay on the cores beside their memory. `auto`: a
    rank has as few nodes as hold its threads, one core a thread before hyperthreads, and ranks are
    spread over nodes. With one node nothing is done."""


class PlacementConfig(ConfigNode, frozen=True, kw_only=True):
    """Nodes of the cluster to use. Ray chooses where nothing is said."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels of a node (`ray start --labels`) by their keys, each with what it must be, as Ray's
    label selectors write it: `a`, `!a`, `in(a,b)`, `!in(a,b)`."""
    max_per_node: Count | None = None
    """Replicas on one node, at most. Empty: as many as its resources allow."""

    def admits(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is one of them."""
        return all(_fits(labels.get(key), wanted) for key, wanted in self.labels.items())


class ParallelConfig(ConfigNode, frozen=True, kw_only=True):
    """Ranks that one replica is spread over: processes, each with a device and a share."""

    tensor: Count = 1
    """Ranks that share every matrix and every head, all on one node. Each asks Ray for what
    `resources` says."""
    pipeline: Count = 1
    """Stages, all on one node, each with some of the layers; times `tensor`. A pass goes through
    them in pieces: see `scheduler.micro_batch_tokens`."""
    context: Count = 1
    """Ranks that share the tokens of long prompts, all on one node, each with the whole model and
    a copy of all KV; times `tensor`. Of the pool that computes prompts."""
    data: Count = 1
    """Engines that share experts and nothing else: each has a scheduler, a cache and requests of
    its own, and is a replica like others to clients. Each is on one node, and has `tensor` ranks;
    `expert` must be `data` times `tensor`."""
    expert: Count = 1
    """Ranks that experts are spread over, each with some whole ones: `tensor`, or that times
    `data`. 1: each rank has a slice of every expert."""
    redundant_experts: NonNegative = 0
    """Experts that each of these ranks keeps beyond its part: copies, which share what the busy
    ones have to do."""
    rebalance_passes: NonNegative = 0
    """Forward passes after which experts are moved to where ranks get like loads, while requests
    run. 0: they stay."""

    def __post_init__(self) -> None:
        try:
            mesh = self.mesh
        except InvalidConfig as error:
            raise ValueError(str(error)) from None
        for name in ("redundant_experts", "rebalance_passes"):
            if getattr(self, name) and mesh.expert == 1:
                raise ValueError(f"{name} is of ranks with whole experts: set expert above 1")

    @property
    def mesh(self) -> Mesh:
        """Raises InvalidConfig for sizes that do not go together."""
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
    """The replicas of one role, all alike."""

    replicas: NonNegative = 1
    """Engines of this role. Without prefill replicas prompts are computed where they decode."""
    resources: ResourcesConfig = ResourcesConfig()
    placement: PlacementConfig = PlacementConfig()
    parallel: ParallelConfig = ParallelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()

    def __post_init__(self) -> None:
        if self.placement.max_per_node is not None and self.parallel.size > 1:
            raise ValueError(
                "placement.max_per_node is of replicas with one rank: Ray places the ranks of "
                "others as a group; leave it empty"
            )

    def engines_on(self, num_cpus: float, num_gpus: float) -> int:
        """Engines that a node with so much holds: each is on one node."""
        asked = ((num_cpus, self.resources.num_cpus), (num_gpus, self.resources.num_gpus))
        ranks = self.parallel.size // self.parallel.data
        engines = min(int(there / (each * ranks) + ROUNDING) for there, each in asked if each)
        return min(engines, self.placement.max_per_node or engines)

    def places_on(self, num_cpus: float, num_gpus: float, *, num_nodes: int = 1) -> int:
        """Replicas that so many nodes hold, each with so much. The engines of one that share
        experts (`parallel.data`) may be on several."""
        return self.engines_on(num_cpus, num_gpus) * num_nodes // self.parallel.data

    @property
    def num_engines(self) -> int:
        """Each is a replica to clients, with tiers of its own."""
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
    """Whether a label fits, as Ray reads selectors: what is not there is not `a`, and is `!a`."""
    is_refusal, wanted = wanted.startswith("!"), wanted.removeprefix("!")
    if wanted.startswith("in(") and wanted.endswith(")"):
        among = [one.strip() for one in wanted[3:-1].split(",")]
    else:
        among = [wanted]
    return (value in among) != is_refusal


class PrefillConfig(PoolConfig, frozen=True, kw_only=True):
    """Replicas that compute prompts."""

    max_queued_tokens: Count = 32_768
    """Prompts that would queue more tokens than these on one replica are refused at once, but for
    one that has nothing before it."""


class DecodeConfig(PoolConfig, frozen=True, kw_only=True):
    """Replicas that generate tokens."""

    max_open: Count = 128
    """Requests a replica takes at once; more wait at the gateways."""
    speculation: SpeculationConfig = SpeculationConfig()

    @property
    def engine(self) -> EngineConfig:
        return self._engine(self.speculation)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replicas == 0:
            raise ValueError("decode.replicas must be at least 1: every request ends on one")
