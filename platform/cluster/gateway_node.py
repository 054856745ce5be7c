"""One gateway, ready to serve: dispatcher and faces, put together.

Used by the Ray actor of `platform/cluster/gateway_actor.py` and, without Ray, by tests and benches.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from baton.core.errors import Unavailable
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.gateway.fleet.fleet import RegistryClient
from baton.gateway.server import GatewayServer
from baton.gateway.text.served_model import ServedModel
from baton.platform.cluster.limit_sharing import SharesRegistry, share_limits
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.security.connections import load_security
from baton.proto.channels import Channels
from baton.router.placer import Routing
from baton.router.policies.by_name import policy


class GatewayNode:
    def __init__(self, config: DeploymentConfig, folder: Path) -> None:
        gateway = config.gateway
        self.dispatcher = ReplicaDispatcher(
            Routing(
                policy(gateway.policy),
                name=gateway.policy,
                local_prefill_tokens=gateway.short_prompt_tokens,
                pull_rates=config.transfer.pull.rates,
                weights=gateway.weights,
            ),
            max_waiting=gateway.max_waiting,
            kept_decisions=gateway.kept_decisions,
            no_replica_grace_s=gateway.no_replica_grace_s,
            channels=Channels(load_security(config.security)),
        )
        model = ServedModel.load(folder, config.model_name, needs_tokenizer=config.wants_weights)
        self.server = GatewayServer(
            model=model, dispatcher=self.dispatcher, config=gateway, wanted=config.wanted_replicas
        )
        self._following: asyncio.Task[None] | None = None
        self._sharing: asyncio.Task[None] | None = None
        self._num_gateways = gateway.replicas

    async def start(self, registry: RegistryClient, shares: SharesRegistry | None = None) -> None:
        """`shares`: of tenants' limits, where other gateways have the others."""
        self._following = asyncio.create_task(self.dispatcher.run(registry))
        limits = self.server.limits
        if shares is not None and limits.demand:
            limits.be_share(dict.fromkeys(limits.demand, 1 / self._num_gateways))
            sharing = share_limits(limits, shares, self.dispatcher.epoch)
            self._sharing = asyncio.create_task(sharing, name="shares limits")
        await self.server.start()

    def check_health(self) -> None:
        """Raise Unavailable if this gateway hears of replicas no more, which nothing else mends."""
        if self._following is not None and self._following.done():
            raise Unavailable(f"the gateway has stopped following the registry: {self._following}")

    async def stop(self, drain_s: float) -> None:
        """Turn unready, let the requests under way finish, then close the ports."""
        await self.server.stop(drain_s)
        tasks = [task for task in (self._following, self._sharing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
