"""Replicas as actors: one per process, with its own gRPC server.

Torch is imported later, after the registry was informed.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ray import serve

from baton.core.ids import ReplicaId
from baton.core.replicas import Role, StartingReplica
from baton.platform.cluster.actor_log import start_actor_log
from baton.platform.cluster.nodes.node_model import (
    FetchStages,
    adapters_here,
    model_here,
    own_node,
)
from baton.platform.cluster.operator_gauges import keep_gauges
from baton.platform.cluster.own_address import own_address
from baton.platform.cluster.ranks.ranks import OtherRanks, call_others, together
from baton.platform.cluster.registry.remote_registry import Handle, replicas_registry
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.config.live import Plain, with_live
from baton.platform.machine.heap import keep_freed_memory
from baton.platform.machine.interpreter import freeze_present_objects, without_garbage_collection
from baton.platform.observe.logs import set_level
from baton.platform.replica.assignment import Assignment
from baton.platform.replica.startup import IMPORTING, Startup

if TYPE_CHECKING:
    from baton.platform.replica.lifetime import Lifetime


class ReplicaActor:
    """The base of both roles: one replica's life, and its ranks."""

    role: Role
    _life: Lifetime
    _others: OtherRanks | None
    _gauges: asyncio.Task[None]

    def __init__(
        self, config: DeploymentConfig, folder: Path | None, registries: Sequence[Handle]
    ) -> None:
        self._config = config
        self._folder = folder
        self._registries = registries

    async def reconfigure(self, told: Plain) -> None:
        """Called by Serve at the start, which starts the replica, and at every change of a live
        setting."""
        config = with_live(self._config, told)
        if not hasattr(self, "_life"):
            await self._begin(config)
            return
        set_level(config.log_level)
        self._life.reconfigure(config)
        if self._others is not None:
            await self._others.reconfigure(config)

    async def _begin(self, config: DeploymentConfig) -> None:
        replica_id = ReplicaId(f"{self.role}-{serve.get_replica_context().replica_id.unique_id}")
        start_actor_log(config, replica_id)
        remote = replicas_registry(self._registries)
        starting = StartingReplica(replica_id=replica_id, role=self.role, stage=IMPORTING)
        async with Startup(remote, starting) as startup:
            await asyncio.to_thread(_import_engine)
            assignment = await self._assigned(config, replica_id, startup)
            await self._start(assignment, startup)

    async def _assigned(
        self, config: DeploymentConfig, replica_id: ReplicaId, startup: Startup
    ) -> Assignment:
        """The assignment with this node's model folder; fetches the model if necessary."""
        name = serve.get_replica_context().app_name
        remote = replicas_registry(self._registries, config.security)
        if self._folder is not None:
            return Assignment(
                name,
                config,
                self.role,
                self._folder,
                replica_id,
                remote,
                adapters=await adapters_here(config),
            )
        startup.enter("finding the model")
        draft = config.decode.speculation.model
        report = FetchStages(startup)
        config, folder = await model_here(config, self.role, report)
        drafts = {"decode.speculation.model": config.decode.speculation.model}
        self._config = override(self._config, drafts)
        return Assignment(
            name,
            config,
            self.role,
            folder,
            replica_id,
            remote,
            node=own_node(),
            draft=draft,
            adapters=await adapters_here(config, report),
        )

    async def _start(self, assignment: Assignment, startup: Startup) -> None:
        from baton.engine.mesh.ranks import ONE_RANK
        from baton.platform.replica.lifetime import Lifetime

        host = own_address(assignment.config)
        self._life = Lifetime(assignment, startup)
        await self._life.answer_probes(host)
        self._others = others = await call_others(assignment, host)

        async def load() -> None:
            await self._life.load(ONE_RANK if others is None else await others.join())

        await together(others, load())
        await self._life.serve(host)
        freeze_present_objects()
        keep_freed_memory()
        if others is not None:
            others.end_with_ranks()
        self._gauges = asyncio.create_task(keep_gauges(assignment, self._life))

    async def check_health(self) -> None:
        """Serve replaces the replica when this raises."""
        self._life.check_health()

    async def __del__(self) -> None:
        """Serve awaits this before it ends the replica, for at most the drain's limit."""
        if not hasattr(self, "_life") or not self._life.is_serving:
            return  # never started
        self._gauges.cancel()
        others = self._others
        if others is None:
            await self._life.drain()
            await self._life.leave()
            return
        await asyncio.gather(self._life.drain(), others.drain())
        await self._life.leave()
        await others.let_go(self._life.engine.runner)


def _import_engine() -> None:
    """Import torch, which takes seconds, and report that to the registry."""
    with without_garbage_collection():
        importlib.import_module("baton.platform.replica.lifetime")


class PrefillActor(ReplicaActor):
    role = Role.PREFILL


class DecodeActor(ReplicaActor):
    role = Role.DECODE
