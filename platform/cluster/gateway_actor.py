"""The gateway as an actor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import serve

from baton.core.errors import InvalidConfig
from baton.platform.cluster.actor_log import start_actor_log
from baton.platform.cluster.cluster_secret import cluster_secret
from baton.platform.cluster.nodes.node_model import find_on_node
from baton.platform.cluster.registry.remote_registry import Handle, gateways_registry
from baton.platform.cluster.serve_calls import ServeCalls, are_ray_metrics_on
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.config.live import Plain, registry_names, with_live
from baton.platform.faults.events import ChaoticWatch
from baton.platform.machine.interpreter import (
    freeze_present_objects,
    freeze_startup_objects,
    without_garbage_collection,
)
from baton.platform.observe.logs import set_level
from baton.platform.registry.union_watch import UnionWatch, WatchedRegistry

if TYPE_CHECKING:
    from baton.platform.cluster.gateway_node import GatewayNode

log = logging.getLogger(__name__)

READY_PATIENCE_S = 2.0


class GatewayActor:
    """Binds the ports of clients and operators. `pools` only keep the deployments together."""

    def __init__(
        self,
        config: DeploymentConfig,
        folder: Path | None,
        registries: Sequence[Handle],
        *pools: Handle,
    ) -> None:
        self._config = config
        self._folder = folder
        self._registries = registries
        self._gateway: GatewayNode | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._sparing: asyncio.Task[None] | None = None
        self._union: UnionWatch | None = None

    async def reconfigure(self, told: Plain) -> None:
        """Called by Serve at the start, before the ports open, and at every change. Raises
        InvalidConfig only at the start, since Serve would stop a running gateway.
        """
        try:
            config = with_live(self._config, told)
        except InvalidConfig as error:
            if self._gateway is None:
                raise
            log.error("invalid settings were sent: %s; the previous configuration holds", error)
            return
        if self._gateway is None:
            await self._start(config)
        else:
            self._gateway.reconfigure(_whole(config))
        set_level(config.log_level)
        self._drain_s = config.health.drain_s
        self._wanted = config.wanted_replicas

    async def _start(self, config: DeploymentConfig) -> None:
        with without_garbage_collection():
            from baton.platform.cluster.gateway_node import GatewayNode, apart  # see `deploy.py`
            from baton.platform.cluster.registry.registry_watch import RegistryWatch

        start_actor_log(config, f"gateway-{serve.get_replica_context().replica_id.unique_id}")
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        if warning := apart(config, sum(node["Alive"] for node in nodes)):
            log.warning("%s", warning)
        folder = self._folder or await find_on_node(config, wants_weights=False)
        calls = ServeCalls() if are_ray_metrics_on() else None
        node = GatewayNode(_whole(config), folder, calls)
        remote = gateways_registry(self._registries)
        lines: list[WatchedRegistry] = [
            RegistryWatch(handle, config.security, config.model_identity)
            for handle in self._registries
        ]
        if node.chaos is not None:
            lines = [ChaoticWatch(line, node.chaos) for line in lines]
        if len(lines) == 1:
            await node.start(lines[0], shares=remote, planner=remote)
        else:
            names = registry_names(len(lines))
            union = self._union = UnionWatch(dict(zip(names, lines, strict=True)))
            await node.start(union, shares=remote, planner=remote, registries=union.told)
        self._gateway = node
        if calls is not None:
            reporting = calls.keep(lambda: node.dispatcher.num_waiting)
            self._reporting = asyncio.create_task(reporting, name="reports calls to Ray")
        freeze_present_objects()
        warm_up = node.dispatcher.fleet.warm_up
        sparing = freeze_startup_objects(warm_up.until_begun, warm_up.until_over)
        self._sparing = asyncio.create_task(sparing, name="spares what replicas are known by")

    @property
    def _node(self) -> GatewayNode:
        assert self._gateway is not None, "Serve calls nobody that is not started"
        return self._gateway

    async def ports(self) -> tuple[int, int, int]:
        """Ports of HTTP, gRPC and the operators' API; the last is 0 if there is none."""
        server = self._node.server
        return server.http_port, server.grpc_port, server.admin_port

    async def status(self) -> dict[str, Any]:
        """The answer of /debug/status, for callers through Ray."""
        return await self._node.dispatcher.status()

    async def flip(self, replica: str, to: str) -> dict[str, Any]:
        """Does what POST /debug/flip does, for the planner."""
        return await self._node.dispatcher.flip(replica, to)

    async def lacks(self) -> str:
        """What is missing until all wanted replicas accept requests. Returns at once if nothing is,
        else after a short wait: an open call would keep Serve from stopping the gateway.
        """
        dispatcher = self._node.dispatcher
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_PATIENCE_S):
                await dispatcher.until_complete(self._wanted)
        if missing := "; ".join(map(str, dispatcher.missing(self._wanted))):
            return missing
        if dispatcher.fleet.warm_up.is_under_way:
            return "replicas to report what they have cached"
        return "" if dispatcher.is_ready() else "a decode replica to take requests"

    async def check_health(self) -> None:
        self._node.check_health()

    async def __del__(self) -> None:
        if getattr(self, "_gateway", None) is not None:
            if self._sparing is not None:
                self._sparing.cancel()
            await self._node.stop(self._drain_s)
            if self._union is not None:
                self._union.close()


def _whole(config: DeploymentConfig) -> DeploymentConfig:
    """`config` with the secret for the hashes of tenants' KV, the same for all gateways."""
    if config.gateway.cache_secret:
        return config
    secret = cluster_secret(serve.get_replica_context().app_name)
    return override(config, {"gateway.cache_secret": secret})
