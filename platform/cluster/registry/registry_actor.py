"""The registry as an actor."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from ray import serve

from baton.core.clock import AwakeClock
from baton.core.errors import InvalidConfig
from baton.core.ids import Epoch
from baton.core.replicas import Membership
from baton.gateway.fleet.traffic import TrafficReport
from baton.platform.cluster.actor_log import start_actor_log
from baton.platform.cluster.applications.applications import apply_planned, flip_any, messages
from baton.platform.cluster.nodes.node_places import node_places
from baton.platform.cluster.own_address import own_address
from baton.platform.cluster.registry.groups_account import groups_account
from baton.platform.cluster.registry.planning import keep_planned, planned
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.config.live import REGISTRY, Plain, registry_names, with_live
from baton.platform.observe.logs import set_level
from baton.platform.planner.planned import Planned
from baton.platform.planner.planner import Planner
from baton.platform.planner.planner_metrics import PlannerReply
from baton.platform.planner.traffic_watch import REPORTS_S, SILENT_S
from baton.platform.registry.registry import Registry
from baton.platform.registry.union_watch import UnionWatch, WatchedRegistry

if TYPE_CHECKING:
    from baton.platform.cluster.registry.registry_port import RegistryPort

log = logging.getLogger(__name__)


class RegistryActor:
    """All methods are async so that Serve runs them on one event loop, one at a time."""

    def __init__(self, config: DeploymentConfig, name: str = REGISTRY) -> None:
        """`name`: of its deployment; each of several registries is its own deployment."""
        self._config = config
        self._name = name
        self._clock = AwakeClock()
        self._registry = Registry(clock=self._clock)
        self._port: RegistryPort | None = None
        self._rules = config.planner
        self._planned: Planned | None = None
        self._planner: Planner | None = None
        self._planning: asyncio.Task[None] | None = None
        self._is_told = False
        start_actor_log(config, name.lower())

    async def reconfigure(self, told: Plain) -> None:
        """Raises InvalidConfig only at the start, since Serve would stop a running registry."""
        try:
            config = with_live(self._config, told)
        except InvalidConfig as error:
            if not self._is_told:
                raise
            log.error("invalid settings were sent: %s; the previous configuration holds", error)
            return
        if self._port is None:
            await self._listen(config)
        self._is_told = True
        set_level(config.log_level)
        self._rules = config.planner
        self._plan(planned(config) if config.planner.enabled else None)

    async def _listen(self, config: DeploymentConfig) -> None:
        from baton.platform.cluster.registry.registry_port import RegistryPort  # see `deploy.py`

        self._clock.start()
        self._port = RegistryPort(self._registry)
        await self._port.start(own_address(config), config.security)

    def _plan(self, wanted: Planned | None) -> None:
        """Plan by these rules from now on; None: not at all. One of several registries plans only
        while gateways report traffic to it."""
        self._planned = wanted
        if wanted is None:
            if self._planning is not None:
                self._planning.cancel()
            self._planner = self._planning = None
        elif self._planner is not None:
            self._planner.planned = wanted
        elif self._is_alone:
            self._begin_planning(wanted)

    @property
    def _is_alone(self) -> bool:
        return self._config.registry.replicas == 1

    def _begin_planning(self, wanted: Planned) -> Planner:
        planner = self._planner = Planner(wanted)
        plan = self._plan_alone if self._is_alone else self._plan_while_told
        self._planning = asyncio.create_task(plan(planner), name="planner")
        return planner

    async def _plan_alone(self, planner: Planner) -> None:
        await self._keep_planned(planner, self._registry.membership)

    async def _keep_planned(self, planner: Planner, membership: Callable[[], Membership]) -> None:
        name = serve.get_replica_context().app_name
        await keep_planned(
            planner,
            membership,
            partial(apply_planned, name),
            partial(flip_any, name),
            partial(messages, name),
            partial(node_places, self._config),
        )

    async def _plan_while_told(self, planner: Planner) -> None:
        """Plan by all registries' replicas. A planner that begins again has no memory of how long
        fewer replicas were enough."""
        union = UnionWatch(self._all_registries())
        union.start()
        planning = asyncio.create_task(
            self._keep_planned(planner, lambda: union.membership() or self._registry.membership())
        )
        log.info("%s plans, as gateways report traffic to it", self._name)
        try:
            await asyncio.sleep(SILENT_S)
            num_silent = 0
            while num_silent < 2:  # once may be this process, which stood still
                await asyncio.sleep(REPORTS_S)
                num_silent = 0 if planner.num_heard else num_silent + 1
            log.info("%s no longer plans: gateways report no traffic to it", self._name)
        finally:
            planning.cancel()
            union.close()
            if self._planner is planner:
                self._planner = self._planning = None

    def _all_registries(self) -> dict[str, WatchedRegistry]:
        from baton.platform.cluster.registry.registry_watch import RegistryWatch  # see `deploy.py`

        application = serve.get_replica_context().app_name
        security = self._config.security
        return {
            name: self._registry
            if name == self._name
            else RegistryWatch(serve.get_deployment_handle(name, application), security)
            for name in registry_names(self._config.registry.replicas)
        }

    @property
    def _planner_if_any(self) -> Planner | None:
        """The planner, if any; asking for it makes this registry the planning one."""
        if self._planner is None and self._planned is not None:
            return self._begin_planning(self._planned)
        return self._planner

    async def report_traffic(self, gateway: Epoch, told: bytes) -> bytes:
        """TrafficReport to PlannerReply, by field names, since the sender may have another
        version."""
        answer, planner = PlannerReply(), self._planner_if_any
        if planner is not None:
            report = msgspec.msgpack.decode(told, type=TrafficReport)
            answer = planner.add_report(gateway, report)
        return msgspec.msgpack.encode(answer)

    async def unix_time(self) -> float:
        """Unix time of the clock for holds of `baton scale`."""
        return time.time()

    async def explain_planner(self) -> dict[str, Any]:
        told: dict[str, Any] = {"is_enabled": False}
        if (planner := self._planner_if_any) is not None:
            told = planner.explain()
        if self._rules.nodes == "kuberay":
            told["groups"] = await asyncio.to_thread(groups_account, self._rules.groups_url)
        return told

    async def heartbeat(self, told: bytes) -> bytes:
        """HeartbeatRequest to HeartbeatReply; the sender may have another version."""
        from baton.proto.replica_pb2 import HeartbeatRequest

        assert self._port is not None, "Serve configures an actor before it is called"
        answer = await self._port.heartbeat(HeartbeatRequest.FromString(told))
        return answer.SerializeToString()

    async def leave(self, epoch: Epoch, telling: int = 0) -> None:
        self._registry.leave(epoch, telling)

    async def report_starting(self, told: bytes) -> float | str:
        """Take a StartingReplica; the seconds until the next report, or why it is refused."""
        from baton.proto.replica_pb2 import StartingReplica as Starting

        assert self._port is not None, "Serve configures an actor before it is called"
        return self._port.receive_starting(Starting.FromString(told))

    async def spare(self, epoch: Epoch, may_be_last: bool) -> str:
        return self._registry.spare(epoch, may_be_last=may_be_last)

    async def membership(self) -> Membership:
        return self._registry.membership()

    async def share_limits(self, gateway: Epoch, demand: Mapping[str, float]) -> dict[str, float]:
        return self._registry.limit_shares.report(gateway, demand)

    async def watch(self, asked: bytes) -> bytes:
        """WatchRequest to MembershipUpdate, for callers that do not know or reach the port."""
        from baton.proto.replica_pb2 import WatchRequest

        assert self._port is not None, "Serve configures an actor before it is called"
        answer = await self._port.watch(WatchRequest.FromString(asked))
        return answer.SerializeToString()
