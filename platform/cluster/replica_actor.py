"""Replicas as actors: one a process, with a gRPC server of its own.

Torch is not imported with this module: the registry is told of it first.
"""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from ray import serve

from baton.core.ids import ReplicaId
from baton.core.messages import Role
from baton.platform.cluster.rank_actor import own_address
from baton.platform.cluster.ranks import call_others, together
from baton.platform.cluster.registry_actor import Handle, RemoteRegistry
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.machine.interpreter import collector_at_rest, spare_what_stays
from baton.platform.observe.logs import start_log
from baton.platform.replica.assignment import Assignment
from baton.platform.replica.startup import Startup

if TYPE_CHECKING:
    from baton.platform.replica.lifetime import Lifetime


class ReplicaActor:
    """What the two roles share: one replica's life, and the ranks it is spread over."""

    role: Role
    _life: Lifetime

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: DeploymentConfig, folder: Path, registry: Handle
    ) -> None:
        context = serve.get_replica_context()
        replica_id = ReplicaId(f"{self.role}-{context.replica_id.unique_id}")
        start_log(config.log_format, replica_id)
        remote = RemoteRegistry(registry)
        assignment = Assignment(context.app_name, config, self.role, folder, replica_id, remote)
        async with Startup(remote, replica_id, self.role) as startup:
            await asyncio.to_thread(_import_engine)
            await self._start(assignment, startup)

    async def _start(self, assignment: Assignment, startup: Startup) -> None:
        from baton.engine.mesh.ranks import ONE_RANK
        from baton.platform.replica.lifetime import Lifetime

        host = own_address(assignment.config)
        self._life = Lifetime(assignment, startup)
        self._others = others = await call_others(assignment, host)

        async def load() -> None:
            await self._life.load(ONE_RANK if others is None else await others.join())

        await together(others, load())
        await self._life.serve(host)
        spare_what_stays()
        if others is not None:
            others.share_fate()

    async def check_health(self) -> None:
        """Serve replaces the replica when this raises."""
        self._life.check_health()

    async def __del__(self) -> None:
        """Serve awaits this before it ends the replica, for as long as the drain may take."""
        if not hasattr(self, "_life") or not self._life.is_serving:
            return  # it never came up
        others = self._others
        if others is None:
            await self._life.drain()
            await self._life.leave()
            return
        await asyncio.gather(self._life.drain(), others.drain())
        await self._life.leave()
        await others.let_go(self._life.engine.runner)


def _import_engine() -> None:
    """Torch takes seconds, in which the registry is told so."""
    with collector_at_rest():
        importlib.import_module("baton.platform.replica.lifetime")


class PrefillActor(ReplicaActor):
    role = Role.PREFILL


class DecodeActor(ReplicaActor):
    role = Role.DECODE
