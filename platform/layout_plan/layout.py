"""A model on the ranks of one mesh: memory and messages of each rank.

Computed from shapes: only `config.json` of the model folder is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from baton.core.errors import InvalidConfig
from baton.engine.assemble import find_device
from baton.engine.batch.batch import Chunk
from baton.engine.checkpoint.deterministic import check_deterministic
from baton.engine.checkpoint.prepared_bytes import prepared_bytes, screen_bytes
from baton.engine.mesh.mesh import Axis, Mesh
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.sharding.cutting import check_context
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.config.pools import ParallelConfig
from baton.platform.doctor.demand import kv_layout, served_dtype
from baton.platform.doctor.node_checks import GIB
from baton.platform.layout_plan.pass_transfers import RankModel, transfers
from baton.platform.layout_plan.rank_models import rank_models
from baton.platform.layout_plan.transfers import Transfer, sent_bytes

AXES = tuple(axis.value for axis in Axis if axis.value in ParallelConfig.__struct_fields__)
"""The axes that replicas may be spread along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The load that a layout is planned for."""

    requests: int
    """Requests that decode together on a replica, spread evenly over its data places."""
    prompt_tokens: int
    """The tokens that one pass prefills, on each data place."""
    context: int
    """Tokens of each request in the cache."""

    def decode_pass(self, mesh: Mesh, block_size: int) -> list[Chunk]:
        blocks = range(-(-self.context // block_size))
        return [Chunk([0], self.context - 1, blocks, 1)] * self.requests_of(mesh)

    def prefill_pass(self, block_size: int) -> list[Chunk]:
        """The chunk of the prefill pass."""
        start = max(0, self.context - self.prompt_tokens)
        blocks = range(-(-(start + self.prompt_tokens) // block_size))
        return [Chunk(range(self.prompt_tokens), start, blocks, 1)]

    def requests_of(self, mesh: Mesh) -> int:
        """Requests on one data place."""
        return -(-self.requests // mesh.data)


@dataclass(frozen=True, slots=True)
class RankTransfers:
    """The transfers of the rank that sends most in a pass."""

    rank: int
    transfers: Sequence[Transfer]

    @property
    def num_calls(self) -> int:
        return sum(each.count for each in self.transfers)

    @property
    def sent_bytes(self) -> int:
        return sent_bytes(self.transfers)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPlan:
    mesh: Mesh
    weight_bytes: int
    """The bytes of weights of the rank that has most."""
    kv_token_bytes: int
    """The bytes of KV of one token, on the rank that keeps most of it."""
    kv_bytes: int
    """Bytes of KV of all requests at their context, on that rank."""
    decode: RankTransfers
    prefill: RankTransfers

    @property
    def name(self) -> str:
        return mesh_name(self.mesh)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    mesh: Mesh
    reason: str

    @property
    def name(self) -> str:
        return mesh_name(self.mesh)


def mesh_name(mesh: Mesh) -> str:
    """A name like `TP2 PP2`, without axes of size 1."""
    sizes = {axis: getattr(mesh, axis.value) for axis in Axis}
    names = [f"{axis.value[0].upper()}P{size}" for axis, size in sizes.items() if size > 1]
    return " ".join(names) or "one rank"


def meshes(num_ranks: int) -> Iterator[Mesh]:
    """All valid meshes on `num_ranks` ranks or a divisor, smallest first, regardless of the
    model."""
    divisors = [size for size in range(1, num_ranks + 1) if num_ranks % size == 0]
    found = []
    for sizes in product(divisors, repeat=len(AXES)):
        try:
            mesh = Mesh(**dict(zip(AXES, sizes, strict=True)))
            mesh.check_data()
            check_context(mesh)
        except InvalidConfig:
            continue
        if num_ranks % mesh.size == 0:
            found.append(mesh)
    yield from sorted(found, key=lambda mesh: mesh.size)


def plan(
    config: DeploymentConfig,
    model: ModelConfig,
    mesh: Mesh,
    traffic: Traffic,
    device_gib: float | None = None,
) -> LayoutPlan | Refused:
    """The plan for a mesh, by the prefill pool's settings. Raises InvalidConfig for an unsupported
    KV dtype."""
    pool, device = config.prefill, find_device(config.device)
    dtype = served_dtype(config.dtype, model, device)
    layout = kv_layout(pool.cache, model, dtype)
    try:
        if config.deterministic:
            check_deterministic(model, device, dtype, mesh)
        models = rank_models(
            model,
            layout,
            mesh,
            dtype,
            device=device,
            micro_batch_tokens=pool.scheduler.micro_batch_tokens,
        )
    except InvalidConfig as error:
        return Refused(mesh=mesh, reason=str(error))
    found = _layout(models, traffic, config.quantize, is_deterministic=config.deterministic)
    if device_gib is not None and found.weight_bytes + found.kv_bytes > device_gib * GIB:
        return Refused(mesh=mesh, reason=_too_large(found, traffic, device_gib))
    return found


def _layout(
    models: Sequence[RankModel], traffic: Traffic, quantize: str, *, is_deterministic: bool
) -> LayoutPlan:
    mesh, dtype = models[0].mesh, models[0].dtype
    block_size = models[0].kv.block_size
    block_bytes = max(each.kv.block_bytes for each in models)
    num_blocks = traffic.requests_of(mesh) * models[0].kv.num_blocks_for(traffic.context)
    return LayoutPlan(
        mesh=mesh,
        weight_bytes=max(
            prepared_bytes(
                each.own, dtype, quantize, device=each.device, is_deterministic=is_deterministic
            )
            + (screen_bytes(each.own, dtype, quantize) if each.has_screen else 0)
            for each in models
        ),
        kv_token_bytes=block_bytes // block_size,
        kv_bytes=num_blocks * block_bytes,
        decode=_busiest(models, traffic.decode_pass(mesh, block_size)),
        prefill=_busiest(models, traffic.prefill_pass(block_size)),
    )


def _busiest(models: Sequence[RankModel], chunks: Sequence[Chunk]) -> RankTransfers:
    mesh = models[0].mesh
    ranks = range(mesh.size)
    of_ranks = [transfers(models[mesh.place(rank).stage], rank, chunks) for rank in ranks]
    busiest = max(ranks, key=lambda rank: sent_bytes(of_ranks[rank]))
    return RankTransfers(busiest, of_ranks[busiest])


def _too_large(layout: LayoutPlan, traffic: Traffic, device_gib: float) -> str:
    return (
        f"{layout.weight_bytes / GIB:.1f} GiB of weights and {layout.kv_bytes / GIB:.1f} GiB of KV "
        f"({traffic.requests_of(layout.mesh)} requests of {traffic.context} tokens) a rank, of "
        f"{device_gib:g} GiB"
    )
