"""The registry as an actor, and as other actors see it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ray.serve.handle import DeploymentHandle

from baton.core.ids import Epoch
from baton.core.messages import Membership, ReplicaInfo, StartingReplica
from baton.platform.cluster.actor_log import start_actor_log
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.config.live import Plain, with_live
from baton.platform.observe.logs import set_level
from baton.platform.registry.registry import Registry

Handle = DeploymentHandle[Any]


REGISTRY_TIMEOUT_S = 5.0


class RegistryActor:
    """All methods are async so that Serve runs them on one event loop, one at a time."""

    def __init__(self, config: DeploymentConfig) -> None:
        self._config = config
        self._registry = Registry()
        start_actor_log(config, "registry")

    async def reconfigure(self, told: Plain) -> None:
        set_level(with_live(self._config, told).log_level)

    async def heartbeat(self, info: ReplicaInfo) -> None:
        self._registry.heartbeat(info)

    async def leave(self, epoch: Epoch) -> None:
        self._registry.leave(epoch)

    async def report_starting(self, starting: StartingReplica) -> None:
        self._registry.report_starting(starting)

    async def membership(self) -> Membership:
        return self._registry.membership()

    async def share_limits(self, gateway: Epoch, demand: Mapping[str, float]) -> dict[str, float]:
        return self._registry.limit_shares.report(gateway, demand)

    async def watch(self, incarnation: Epoch | None, version: int) -> Membership:
        return await self._registry.watch(incarnation, version)


@dataclass(frozen=True, slots=True)
class RemoteRegistry:
    """The registry as other actors see it. Raises whatever Ray raises when it is away."""

    handle: Handle
    model: str = ""
    """Only its replicas are told of, if it is given."""

    async def heartbeat(self, info: ReplicaInfo) -> None:
        await asyncio.wait_for(self.handle.heartbeat.remote(info), REGISTRY_TIMEOUT_S)

    async def leave(self, epoch: Epoch) -> None:
        await asyncio.wait_for(self.handle.leave.remote(epoch), REGISTRY_TIMEOUT_S)

    async def report_starting(self, starting: StartingReplica) -> None:
        await asyncio.wait_for(self.handle.report_starting.remote(starting), REGISTRY_TIMEOUT_S)

    async def share_limits(self, gateway: Epoch, demand: Mapping[str, float]) -> dict[str, float]:
        call = self.handle.share_limits.remote(gateway, demand)
        shares: dict[str, float] = await asyncio.wait_for(call, REGISTRY_TIMEOUT_S)
        return shares

    async def watch(self, incarnation: Epoch | None, version: int) -> Membership:
        membership: Membership = await self.handle.watch.remote(incarnation, version)
        if not self.model:
            return membership
        own = tuple(info for info in membership.replicas if info.model == self.model)
        return replace(membership, replicas=own)
