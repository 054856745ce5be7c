"""The Ray Serve application: the only module that turns plain classes into actors.

    Gateway     binds the HTTP and gRPC ports itself; Serve's own proxies are off
    Decode      one actor a replica, each with a gRPC server of its own
    Prefill     likewise
    Registry    hears the replicas' heartbeats, tells the gateways

Serve starts, checks, restarts and drains them. No request ever passes through Ray.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from baton.core.ids import Epoch, ReplicaId
from baton.core.messages import Membership, ReplicaInfo, Role
from baton.platform.chaos.events import ChaoticWatch, heartbeat
from baton.platform.config import DeploymentConfig, PoolConfig, override
from baton.platform.gateway.assemble import GatewayNode
from baton.platform.gateway.cache_salt import draw_secret
from baton.platform.interpreter import spare_what_stays
from baton.platform.ranks import call_followers, pool_of, together
from baton.platform.registry import HEARTBEAT_S, Loading, Registry

if TYPE_CHECKING:
    from baton.engine.engine import Engine
    from baton.platform.replica import Replica

log = logging.getLogger(__name__)

Handle = DeploymentHandle[Any]

APP_NAME = "baton"
NO_CPU: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0}}
REGISTRY_TIMEOUT_S = 5.0
LOADING_REPORT_S = 0.5
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

    async def report_loading(self, loading: Loading) -> None:
        self._registry.report_loading(loading)

    async def loading(self) -> tuple[Loading, ...]:
        return self._registry.loading()

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

    async def report_loading(self, loading: Loading) -> None:
        await asyncio.wait_for(self.handle.report_loading.remote(loading), REGISTRY_TIMEOUT_S)

    async def watch(self, incarnation: Epoch | None, version: int) -> Membership:
        membership: Membership = await self.handle.watch.remote(incarnation, version)
        return membership


class ReplicaActor:
    """What the two roles share: load, register, stay registered, drain, leave."""

    role: Role

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: DeploymentConfig, folder: Path, registry: Handle
    ) -> None:
        import torch  # here, so that neither gateway nor registry pays for it

        from baton.platform.core_share import fair_share, share_of_cores
        from baton.platform.replica import start_replica

        self._health = config.health
        self._registry = RemoteRegistry(registry)
        self._id = ReplicaId(f"{self.role}-{serve.get_replica_context().replica_id.unique_id}")
        self._host = _own_address(config)
        pool = pool_of(config, self.role)
        num_threads = pool.resources.num_threads
        torch.set_num_threads(num_threads or share_of_cores(config))
        self._followers = call_followers(config, self.role, folder, self._host)
        self._engine = engine = await together(self._followers, self._load(config, folder))
        device, dtype = engine.runner.cache.device.type, engine.info.dtype
        share = await asyncio.to_thread(fair_share, config, device, dtype)  # may have to compile
        torch.set_num_threads(num_threads or share)
        self._replica: Replica = await start_replica(
            config, self.role, engine, replica_id=self._id, host=self._host
        )
        spare_what_stays()
        self._heart = asyncio.create_task(self._beat())
        if self._followers is not None:
            self._followers.share_fate()

    async def check_health(self) -> None:
        """Serve replaces the replica when this raises."""
        self._replica.worker.check_health(limit_s=self._health.stuck_after_s)

    async def __del__(self) -> None:
        """Serve awaits this before it ends the replica, for as long as the drain may take."""
        if not hasattr(self, "_replica"):
            return  # it never came up
        draining = asyncio.create_task(self._replica.drain(self._health.drain_s))
        await asyncio.sleep(0)  # by now it calls itself unready: say so
        await self._try(self._registry.heartbeat(self._replica.info))
        if not await draining:
            log.warning("%s leaves with requests unfinished; gateways place them again", self._id)
        self._heart.cancel()
        await self._try(self._registry.leave(self._replica.info.epoch))
        await self._replica.stop()
        if self._followers is not None:
            await self._followers.let_go(self._engine.runner)

    async def _load(self, config: DeploymentConfig, folder: Path) -> Engine:
        """Load the weights, telling the registry how far it is."""
        from baton.engine.parallel.ranks import ONE_RANK, MeshGroups
        from baton.platform.replica import load_engine

        done = [0, 1]

        def progress(num_bytes: int, total: int) -> None:
            done[:] = [num_bytes, max(1, total)]

        groups: MeshGroups = ONE_RANK if self._followers is None else await self._followers.join()
        loading = asyncio.create_task(load_engine(config, self.role, folder, progress, groups))
        while not loading.done():
            fraction = done[0] / done[1]
            state = Loading(self._id, self.role, "loading weights", fraction)
            await self._try(self._registry.report_loading(state))
            await asyncio.wait((loading,), timeout=LOADING_REPORT_S)
        return await loading

    async def _beat(self) -> None:
        while True:
            await self._try(heartbeat(self._registry, self._replica.info, self._replica.chaos))
            await asyncio.sleep(HEARTBEAT_S)

    async def _try(self, call: Coroutine[Any, Any, None]) -> None:
        """The registry is a hint: a replica serves on without it."""
        try:
            await call
        except Exception as error:
            log.warning("%s cannot reach the registry: %r", self._id, error)


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
        self._drain_s = config.health.drain_s
        self._gateway = GatewayNode(config, folder)
        remote = RemoteRegistry(registry)
        chaos = config.chaos.start("gateway")
        await self._gateway.start(remote if chaos is None else ChaoticWatch(remote, chaos))
        spare_what_stays()

    async def ports(self) -> tuple[int, int]:
        return self._gateway.server.http_port, self._gateway.server.grpc_port

    async def is_ready(self) -> bool:
        return self._gateway.dispatcher.is_ready()

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


def _own_address(config: DeploymentConfig) -> str:
    """Where this replica listens. Replicas trust each other: on one machine, to nobody else."""
    if not config.ray.address:
        return "127.0.0.1"
    node_id = ray.get_runtime_context().get_node_id()
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    [address] = [node["NodeManagerAddress"] for node in nodes if node["NodeID"] == node_id]
    return str(address)


def _resources(pool: PoolConfig) -> dict[str, Any]:
    """What Serve asks Ray for, for each replica."""
    cpus, gpus = pool.resources.num_cpus, pool.resources.num_gpus
    options: dict[str, Any] = {"ray_actor_options": {"num_cpus": cpus, "num_gpus": gpus}}
    if pool.parallel.size > 1:
        options["placement_group_bundles"] = [{"CPU": cpus, "GPU": gpus}] * pool.parallel.size
        options["placement_group_strategy"] = "STRICT_PACK"  # ranks share memory
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
