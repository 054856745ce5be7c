"""The Ray Serve application: the only module that turns plain classes into actors.

    Gateway     binds the HTTP and gRPC ports itself; Serve's own proxies are off
    Decode      one actor a replica, each with a gRPC server of its own
    Prefill     likewise
    Registry    hears the replicas' heartbeats, tells the gateways

Serve starts, checks, restarts and drains them. No request ever passes through Ray.
"""

from __future__ import annotations

import asyncio
import importlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from baton.core.ids import Epoch, ReplicaId
from baton.core.messages import Membership, ReplicaInfo, Role, StartingReplica
from baton.gateway.access.cache_salt import draw_secret
from baton.platform.chaos.events import ChaoticWatch
from baton.platform.cluster.gateway_node import GatewayNode
from baton.platform.cluster.rank_actor import Assignment, own_address
from baton.platform.cluster.ranks import bundles_of, call_others, strategy_of, together
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.config.pools import PoolConfig
from baton.platform.machine.interpreter import collector_at_rest, spare_what_stays
from baton.platform.observe.logs import start_log
from baton.platform.registry.registry import Registry
from baton.platform.replica.startup import Startup

if TYPE_CHECKING:
    from baton.platform.replica.lifetime import Lifetime

Handle = DeploymentHandle[Any]

APP_NAME = "baton"
NO_CPU: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0}}
REGISTRY_TIMEOUT_S = 5.0
READY_PATIENCE_S = 2.0
HEALTH_CHECK_TIMEOUT_S = 5.0
"""Serve replaces a replica after three of them."""
SHUTDOWN_SLACK_S = 5.0
"""What Serve allows on top of the drain before it kills."""


class RegistryActor:
    """All methods are async so that Serve runs them on one event loop, one at a time."""

    def __init__(self) -> None:
        self._registry = Registry()

    async def heartbeat(self, info: ReplicaInfo) -> None:
        self._registry.heartbeat(info)

    async def leave(self, epoch: Epoch) -> None:
        self._registry.leave(epoch)

    async def report_starting(self, starting: StartingReplica) -> None:
        self._registry.report_starting(starting)

    async def membership(self) -> Membership:
        return self._registry.membership()

    async def watch(self, incarnation: Epoch | None, version: int) -> Membership:
        return await self._registry.watch(incarnation, version)


@dataclass(frozen=True, slots=True)
class RemoteRegistry:
    """The registry as other actors see it. Raises whatever Ray raises when it is away."""

    handle: Handle

    async def heartbeat(self, info: ReplicaInfo) -> None:
        await asyncio.wait_for(self.handle.heartbeat.remote(info), REGISTRY_TIMEOUT_S)

    async def leave(self, epoch: Epoch) -> None:
        await asyncio.wait_for(self.handle.leave.remote(epoch), REGISTRY_TIMEOUT_S)

    async def report_starting(self, starting: StartingReplica) -> None:
        await asyncio.wait_for(self.handle.report_starting.remote(starting), REGISTRY_TIMEOUT_S)

    async def watch(self, incarnation: Epoch | None, version: int) -> Membership:
        membership: Membership = await self.handle.watch.remote(incarnation, version)
        return membership


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


class GatewayActor:
    """Binds the public ports. `pools` only keep the deployments in one application."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        config: DeploymentConfig,
        folder: Path,
        registry: Handle,
        *pools: Handle,
    ) -> None:
        start_log(config.log_format, f"gateway-{serve.get_replica_context().replica_id.unique_id}")
        self._drain_s = config.health.drain_s
        self._wanted = config.wanted_replicas
        self._gateway = GatewayNode(config, folder)
        remote = RemoteRegistry(registry)
        chaos = config.chaos.start("gateway")
        await self._gateway.start(remote if chaos is None else ChaoticWatch(remote, chaos))
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


def build_app(config: DeploymentConfig, folder: Path) -> serve.Application:
    """The application as a graph of deployments. `folder` must exist on every node."""
    registry = _deployment(config, RegistryActor, "Registry", 1, NO_CPU, drain_s=0.1).bind()
    pools = [
        _deployment(
            config,
            actor,
            name,
            pool.replicas,
            _resources(pool),
            drain_s=config.health.drain_s,
        ).bind(config, folder, registry)
        for actor, name, pool in (
            (DecodeActor, "Decode", config.decode),
            (PrefillActor, "Prefill", config.prefill),
        )
        if pool.replicas
    ]
    gateway = _deployment(
        config,
        GatewayActor,
        "Gateway",
        config.gateway.replicas,
        NO_CPU,
        drain_s=config.health.drain_s,
    )
    return gateway.bind(with_cache_secret(config), folder, registry, *pools)


def with_cache_secret(config: DeploymentConfig) -> DeploymentConfig:
    """All gateways must name the KV of tenants alike, so what is drawn is drawn here."""
    if config.gateway.cache_secret:
        return config
    return override(config, {"gateway.cache_secret": draw_secret()})


def _resources(pool: PoolConfig) -> dict[str, Any]:
    """What Serve asks Ray for, for each replica."""
    cpus, gpus = pool.resources.num_cpus, pool.resources.num_gpus
    options: dict[str, Any] = {"ray_actor_options": {"num_cpus": cpus, "num_gpus": gpus}}
    if pool.parallel.size > 1:
        size, count = bundles_of(pool.parallel.mesh)
        options["placement_group_bundles"] = [{"CPU": cpus * size, "GPU": gpus * size}] * count
        options["placement_group_strategy"] = strategy_of(pool.parallel.mesh)
    return options


def _deployment(
    config: DeploymentConfig,
    actor: type,
    name: str,
    replicas: int,
    resources: dict[str, Any],
    drain_s: float,
) -> serve.Deployment:
    decorate = serve.deployment(
        name=name,
        num_replicas=replicas,
        max_ongoing_requests=1000,
        **resources,
        health_check_period_s=config.health.check_period_s,
        health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=drain_s + SHUTDOWN_SLACK_S,
        max_constructor_retry_count=3,
        logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
    )
    return decorate(actor)
