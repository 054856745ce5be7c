"""One rank of a replica with several, in its own process.

    lead      the first rank of an engine: it serves, as a replica with its own name and address
    follow    a further rank of an engine; no port

Rank 0 is the replica itself: `platform/cluster/replica_actor.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from baton.core.ids import ReplicaId
from baton.core.replicas import StartingReplica
from baton.platform.cluster.actor_log import start_actor_log
from baton.platform.cluster.nodes.node_model import assigned_here
from baton.platform.cluster.own_address import own_address
from baton.platform.cluster.ranks.rank_order import own_location, read_links
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.machine.interpreter import freeze_present_objects
from baton.platform.machine.link_matrix import DeviceLocation
from baton.platform.observe.logs import set_level
from baton.platform.replica.assignment import Assignment
from baton.platform.replica.startup import IMPORTING, Startup

if TYPE_CHECKING:
    from baton.engine.mesh.ranks import Rendezvous
    from baton.engine.passes.runner import Runner
    from baton.platform.replica.lifetime import Lifetime


class RankActor:
    """One rank. Its other methods only answer that it is alive and healthy."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._life: Lifetime | None = None
        self._has_left = asyncio.Event()

    def __repr__(self) -> str:
        """The name of the actor in Ray's logs and dashboard."""
        return self._name

    async def follow(self, assignment: Assignment, meeting: Rendezvous, rank: int) -> None:
        """Compute until the lead ends; raises when a rank is gone."""
        start_actor_log(assignment.config, f"{assignment.replica_id}:rank-{rank}")
        assignment = await assigned_here(assignment)
        await asyncio.to_thread(_follow, assignment, meeting, rank)

    async def lead(self, assignment: Assignment, meeting: Rendezvous, rank: int) -> None:
        """Serve with an engine of its own. Returns when asked to leave; raises if it cannot."""
        from baton.engine.mesh.ranks import join
        from baton.platform.replica.lifetime import Lifetime

        place = meeting.mesh.place(rank)
        own = replace(assignment, replica_id=ReplicaId(f"{assignment.replica_id}.{place.data}"))
        start_actor_log(own.config, own.replica_id)
        starting = StartingReplica(replica_id=own.replica_id, role=own.role, stage=IMPORTING)
        async with Startup(own.registry, starting) as startup:
            own = await assigned_here(own, startup)
            life, host = Lifetime(own, startup), own_address(own.config)
            self._life = life
            await life.answer_probes(host)
            await life.load(await asyncio.to_thread(join, meeting, rank))
            await life.serve(host)
        freeze_present_objects()
        await self._has_left.wait()

    async def reconfigure(self, config: DeploymentConfig) -> None:
        """Use `config`'s live settings from now on."""
        set_level(config.log_level)
        if self._life is not None:
            self._life.reconfigure(config)

    async def drain(self) -> None:
        """Drain the engine that this rank leads."""
        if self._life is not None:
            await self._life.drain()

    async def leave(self) -> None:
        """Leave, as a drained lead; it takes part in passes until all leave."""
        if self._life is not None and self._life.is_serving:
            await self._life.leave()
            await asyncio.to_thread(closing(self._life.engine.runner))
        self._has_left.set()

    async def location(self, device: str) -> DeviceLocation:
        return own_location(device)

    async def read_links(self) -> tuple[str, str]:
        return read_links()

    async def is_there(self) -> None:
        """Raises EngineFailed if its engine has failed."""
        if self._life is not None:
            self._life.check_health()


def _follow(assignment: Assignment, meeting: Rendezvous, rank: int) -> None:
    from baton.engine.assemble import find_device, follow_lead
    from baton.engine.mesh.ranks import join
    from baton.kv_transfer.transports import registering
    from baton.platform.machine.rank_cores import RankCores
    from baton.platform.replica.replica import engine_config

    config, role = assignment.config, assignment.role
    is_on_cpu = find_device(config.device) == "cpu"
    cores = RankCores(config, assignment.pool.resources, is_on_cpu=is_on_cpu)
    cores.use()
    if is_on_cpu:
        cores.place_threads()
    # On CPUs the lead has this rank's memory mapped; of equal replicas it lends its own.
    is_lent_here = not (is_on_cpu or meeting.mesh.engine.has_whole_models)
    follow_lead(
        assignment.folder,
        engine_config(config, role),
        join(meeting, rank),
        introduce=registering(config.kv_ways) if is_lent_here else None,
        dtype=config.dtype,
        device=config.device,
        load_format=config.load_format,
        quantize=config.quantize,
        deterministic=config.deterministic,
        streaming=config.streaming,
        adapters=assignment.adapters,
    )


def closing(runner: Runner) -> Callable[[], None]:
    """Ends the other ranks of a lead."""
    from baton.engine.ranks.lead import LeadRunner
    from baton.engine.ranks.lockstep import LockstepRunner

    assert isinstance(runner, LeadRunner | LockstepRunner)
    return runner.close
