"""The gateway as an actor."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from ray import serve

from baton.platform.cluster.registry_actor import Handle, RemoteRegistry
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.faults.events import ChaoticWatch
from baton.platform.machine.interpreter import collector_at_rest, spare_what_stays
from baton.platform.observe.logs import start_log

READY_PATIENCE_S = 2.0


class GatewayActor:
    """Binds the public ports. `pools` only keep the deployments in one application."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        config: DeploymentConfig,
        folder: Path,
        registry: Handle,
        *pools: Handle,
    ) -> None:
        with collector_at_rest():
            from baton.platform.cluster.gateway_node import GatewayNode  # see `deploy.py`

        start_log(config.log_format, f"gateway-{serve.get_replica_context().replica_id.unique_id}")
        self._drain_s = config.health.drain_s
        self._wanted = config.wanted_replicas
        self._gateway = GatewayNode(config, folder)
        remote = RemoteRegistry(registry)
        chaos = config.chaos.start("gateway")
        watched = remote if chaos is None else ChaoticWatch(remote, chaos)
        await self._gateway.start(watched, shares=remote)
        spare_what_stays()

    async def ports(self) -> tuple[int, int]:
        return self._gateway.server.http_port, self._gateway.server.grpc_port

    async def lacks(self) -> str:
        """What is missing until requests are taken by all replicas that are wanted.

        Nothing is said at once, anything else after a moment and no later: Serve lets a gateway go
        only when no call to it is open.
        """
        dispatcher = self._gateway.dispatcher
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_PATIENCE_S):
                await dispatcher.until_complete(self._wanted)
        missing = "; ".join(map(str, dispatcher.missing(self._wanted)))
        return missing or ("" if dispatcher.is_ready() else "a decode replica to take requests")

    async def check_health(self) -> None:
        self._gateway.check_health()

    async def __del__(self) -> None:
        if hasattr(self, "_gateway"):
            await self._gateway.stop(self._drain_s)
