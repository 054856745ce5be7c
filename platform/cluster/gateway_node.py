"""One complete gateway: dispatcher and servers.

Used by the Ray actor of `platform/cluster/gateway_actor.py` and, without Ray, by tests and
benchmarks.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from baton.core.errors import InvalidConfig, Unavailable
from baton.core.ids import Epoch
from baton.gateway.access.config import GatewayConfig
from baton.gateway.access.rate_limits import RateLimits
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.gateway.fleet.membership.registry_follower import RegistryClient
from baton.gateway.requests.reporting import CallWatch, Reporting
from baton.gateway.server import GatewayServer
from baton.gateway.text.served_model import ServedModel
from baton.platform.cluster.registry.planner_link import PlannerLink, PlannerRegistry
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.models.node_cache import own_cache
from baton.platform.observe.listeners import bind_first_free
from baton.platform.observe.otel import start_tracing
from baton.platform.observe.process_port import ProcessPages, ProcessPort
from baton.platform.registry.limit_shares import REPORTS_S
from baton.platform.security.connections import load_security
from baton.platform.security.secrets import names_any, with_secrets, with_secrets_of
from baton.proto.channels import Channels
from baton.router.placer import Routing
from baton.router.policies.by_name import policy

log = logging.getLogger(__name__)

SECRETS_PERIOD_S = 2.0
"""Seconds between checks of key files."""
CACHE_SECRET_CHANGED = (
    "gateway.cache_secret is another where it is read: that of the start holds until gateways are "
    "started anew"
)


class LimitShareRegistry(Protocol):
    async def share_limits(self, gateway: Epoch, demand: Mapping[str, float]) -> dict[str, float]:
        """Raises whatever Ray raises while it is away."""


async def share_limits(
    limits: RateLimits, registry: LimitShareRegistry, gateway: Epoch, each_s: float = REPORTS_S
) -> None:
    """Keep a gateway's share of the tenants' limits up to date, for ever.

    While the registry is away the share stays what it was.
    """
    is_away = False
    while True:
        try:
            limits.be_share(await registry.share_limits(gateway, limits.demand))
            is_away = False
        except Exception as error:
            if not is_away:
                log.warning("the registry is away (%r); limits are shared as they were", error)
            is_away = True
        await asyncio.sleep(each_s)


class GatewayNode:
    def __init__(
        self, config: DeploymentConfig, folder: Path, calls: CallWatch | None = None
    ) -> None:
        """Raises InvalidConfig if a referenced secret is missing. `calls`: the watcher of clients'
        calls."""
        self._config = self._asked = config
        self.chaos = config.chaos.start("gateway")
        gateway = config.gateway
        self._known = with_secrets(gateway)
        self.dispatcher = ReplicaDispatcher(
            _routing(config),
            max_waiting=gateway.max_waiting,
            kept_decisions=gateway.kept_decisions,
            no_replica_grace_s=config.no_replica_grace_s,
            cold_start_s=config.cold_start_s,
            channels=Channels(load_security(config.security)),
        )
        self._planner = PlannerLink(self.dispatcher, config.wanted_replicas)
        model = ServedModel.load(
            folder,
            config.model_name,
            aliases=gateway.model_aliases,
            adapters=config.adapters,
            needs_tokenizer=config.wants_weights,
            reranker=gateway.reranker,
            chat_template=gateway.chat_template,
        )
        self.server = GatewayServer(
            model=model,
            dispatcher=self.dispatcher,
            config=_with_folder(self._known, config.model_name),
            wanted=config.wanted_replicas,
            chaos=self.chaos,
            reporting=Reporting(
                tracer=start_tracing(config.tracing, "baton-gateway", self.dispatcher.epoch),
                has_vllm_names=config.metrics.vllm_names,
                planner=self._planner,
                calls=calls,
            ),
        )
        self._metrics = config.metrics
        self.process_port = ProcessPort(
            ProcessPages(
                metrics=self.server.metrics_page,
                is_well=lambda: self._why_unwell is None,
                is_ready=self.server.is_ready,
            )
        )
        self._shares: LimitShareRegistry | None = None
        self._planner_registry: PlannerRegistry | None = None
        self._following: asyncio.Task[None] | None = None
        self._sharing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._host = config.gateway.host

    async def start(
        self,
        registry: RegistryClient,
        shares: LimitShareRegistry | None = None,
        planner: PlannerRegistry | None = None,
        registries: Callable[[], list[dict[str, Any]]] | None = None,
    ) -> None:
        """`shares`: assigns shares of tenants' limits to several gateways. `planner`: the planner's
        link, if one plans. `registries`: the state of each registry, for operators."""
        self._following = asyncio.create_task(self.dispatcher.run(registry, registries))
        self._shares = shares
        self._planner_registry = planner
        self._start_needed_tasks()
        if self._metrics.enabled:
            host = self._metrics.host or self._host
            await self.process_port.start(host, self._metrics.gateway_port)
        await self.server.start()
        if self._config.gateway.admin_port is not None:
            await self._open_admin(self._config.gateway.admin_host, self._config.gateway.admin_port)

    async def _open_admin(self, host: str, port: int) -> None:
        """Raises InvalidConfig if this machine has no such address."""
        try:
            listener = bind_first_free(host, port)
        except OSError as error:
            raise InvalidConfig(
                f"gateway.admin_host: cannot listen on {host} ({error.strerror}); give an address "
                "of the gateway's own, or gateway.admin_port: null for none"
            ) from error
        await self.server.open_admin(listener)
        log.info("operators are answered at %s:%d", host, self.server.admin_port)

    def reconfigure(self, config: DeploymentConfig) -> None:
        """Use `config`'s live settings from now on. If a secret with an unchanged name cannot be
        read, its last value holds; if a new one cannot be read, the previous configuration holds.
        """
        self._asked = config
        try:
            known: GatewayConfig | None = with_secrets(config.gateway)
        except InvalidConfig as error:
            known = with_secrets_of(config.gateway, self._config.gateway, self._known)
            if known is None:
                log.error("%s; the configuration of before holds until that is mended", error)
            else:
                log.warning("%s; the keys of before hold", error)
        if known is not None:
            self._apply(config, known)
        self._start_needed_tasks()  # also starts the periodic check

    def _apply(self, config: DeploymentConfig, known: GatewayConfig) -> None:
        """`known`: gateway settings with secrets. The cache secret stays, since block hashes depend
        on it."""
        known = msgspec.structs.replace(known, cache_secret=self._known.cache_secret)
        if config is self._config and known == self._known:
            return
        if config is not self._config:
            self.dispatcher.reconfigure(
                _routing(config),
                max_waiting=known.max_waiting,
                no_replica_grace_s=config.no_replica_grace_s,
                cold_start_s=config.cold_start_s,
            )
        log.info("keys or settings have changed, and hold from now on")
        self._config, self._known = config, known
        self._planner.wanted = config.wanted_replicas
        self.server.reconfigure(known, config.wanted_replicas)
        self._start_needed_tasks()

    def _start_needed_tasks(self) -> None:
        """Start the background tasks that the configuration needs and that do not run yet."""
        gateway, limits = self._config.gateway, self.server.limits
        if self._sharing is None and self._shares is not None and limits.demand:
            limits.be_share(dict.fromkeys(limits.demand, 1 / gateway.replicas))
            sharing = share_limits(limits, self._shares, self.dispatcher.epoch)
            self._sharing = asyncio.create_task(sharing, name="shares limits")
        rules, registry = self._config.planner, self._planner_registry
        self._planner.follow(registry if rules.enabled else None)
        self._planner.has_followed_groups = rules.nodes == "kuberay"
        is_explained = rules.enabled or self._planner.has_followed_groups
        self._planner.explained_by = registry if is_explained else None
        if self._watching is None and names_any(self._asked.gateway):
            self._watching = asyncio.create_task(self._watch_secrets(), name="watches secrets")

    async def _watch_secrets(self) -> None:
        """Reread secrets for ever. While one cannot be read, the last values hold."""
        told = set[str]()
        while True:
            await asyncio.sleep(SECRETS_PERIOD_S)
            asked, troubles = self._asked, set[str]()
            for config in (asked, self._config):  # removed keys are still revoked
                try:
                    known = await asyncio.to_thread(with_secrets, config.gateway)
                except InvalidConfig as error:
                    troubles.add(f"{error}; what was read last holds")
                    continue
                if asked is self._asked:  # the configuration has not changed meanwhile
                    if known.cache_secret != self._known.cache_secret:
                        troubles.add(CACHE_SECRET_CHANGED)
                    self._apply(config, known)
                break
            for trouble in troubles - told:
                log.warning("%s", trouble)
            told = troubles

    def check_health(self) -> None:
        """Raise Unavailable if this gateway does not follow the replicas any more, which only a
        restart mends."""
        if self._why_unwell is not None:
            raise Unavailable(self._why_unwell)

    @property
    def _why_unwell(self) -> str | None:
        if self._following is None or not self._following.done():
            return None
        return f"the gateway has stopped following the registry: {self._following}"

    async def stop(self, drain_s: float) -> None:
        """Turn unready, let running requests finish, then close the ports."""
        await self.server.stop(drain_s)
        self._planner.follow(None)
        tasks = [
            task for task in (self._following, self._sharing, self._watching) if task is not None
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.process_port.stop()


def _routing(config: DeploymentConfig) -> Routing:
    gateway = config.gateway
    return Routing(
        policy(gateway.policy),
        name=gateway.policy,
        local_prefill_tokens=gateway.short_prompt_tokens,
        pull_rates=config.transfer.pull.rates,
        weights=gateway.weights,
    )


def apart(config: DeploymentConfig, num_nodes: int) -> str | None:
    """Why gateways would not find each other's stored values; empty if they do."""
    gateway = config.gateway
    is_one_folder = gateway.storage.folder or gateway.replicas == 1 or num_nodes == 1
    if is_one_folder or not gateway.storage.max_bytes:
        return None
    return (
        f"the cluster has {num_nodes} nodes, and gateway.storage.folder is not set: what one "
        "gateway keeps is not found by those of other nodes; name a folder that all nodes share"
    )


def _with_folder(gateway: GatewayConfig, model: str) -> GatewayConfig:
    """`gateway` with this node's storage folder, if none is named."""
    if gateway.storage.folder:
        return gateway
    folder = own_cache() / "storage" / f"of-{re.sub(r'[^A-Za-z0-9.-]+', '-', model)}"
    storage = msgspec.structs.replace(gateway.storage, folder=str(folder))
    return msgspec.structs.replace(gateway, storage=storage)
