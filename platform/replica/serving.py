"""Serves an engine, in the role of its pool or in the other one.

    begin   worker and server start; from now on a heartbeat reports where
    turn    gateways hang up; the same in the other role, as another incarnation: see `flips.py`;
            the spans of the last one are sent meanwhile
    drain   unready, which the registry gets at once; then requests finish, or go elsewhere
    leave   the registry forgets it; gateways hang up; server and worker end, the engine's ranks
            remain

A replica continues to serve without a registry, which is only a hint.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from baton.core.errors import EngineFailed
from baton.core.replicas import HEARTBEAT_S, ReplicaInfo, Role, StartingReplica
from baton.core.wording import count_of
from baton.engine.engine import Engine
from baton.kv_transfer.handoff.auditor import audit
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.faults.events import heartbeat
from baton.platform.replica.assignment import Assignment
from baton.platform.replica.flips import Flips
from baton.platform.replica.replica import Replica, start_replica
from baton.platform.replica.replica_page import ReplicaPage
from baton.platform.replica.startup import Startup

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

FAREWELL_S = 1.0
"""Seconds that a replica which ends waits for the registry to answer. Where an application ends,
its registry ends, too, and a call to it may never be answered. A registry that needs longer loses
nothing but time: the replica itself reports to gateways that it takes no more, and ends their
streams; the registry drops it after 3.5 s of silence, and until then the planner counts one replica
too many, and a gateway that starts cannot reach it."""

HANG_UP_S = 0.25
"""Seconds that a replica which has said farewell gives gateways to end their streams, which they do
as soon as the registry reports it. If it ended a stream at the same moment as a gateway, gRPC would
log an error with a traceback: it cannot send a status to a caller that has hung up."""
LOOK_S = 0.005


class Serving:
    def __init__(self, assignment: Assignment, engine: Engine, host: str) -> None:
        """Serve on a free port of `host`."""
        self.config = assignment.config
        self.replica: Replica | None = None
        """The current incarnation; None before it begins, and while it turns."""
        self._assignment = assignment
        self._id = assignment.replica_id
        self._registry = assignment.registry
        self._engine = engine
        self._host = host
        self._flips = Flips(self)
        self._page: ReplicaPage | None = None
        self._heart: asyncio.Task[None] | None = None
        self._telling: set[asyncio.Task[None]] = set()
        """Tasks that send the spans of earlier incarnations."""
        self._failure: BaseException | None = None

    async def begin(self, role: Role) -> None:
        config = self.config
        replica = await start_replica(
            config, role, self._engine, replica_id=self._id, host=self._host
        )
        if config is not self.config:  # a reconfiguration during the start
            replica.reconfigure(config, self.config)
        replica.books.flips = self._flips
        replica.registered = replace(replica.registered, is_flipped=self._is_other(role))
        self._page = ReplicaPage(replica, self.config.metrics)
        self._heart = asyncio.create_task(self._beat(replica))
        self.replica = replica

    async def deregister(self) -> None:
        """Deregister. Raises any error of the call, and then heartbeats continue."""
        replica = self.replica
        assert replica is not None and self._heart is not None, "it has begun"
        self._heart.cancel()
        try:
            await self._registry.leave(replica.info.epoch)
        except BaseException:
            self._heart = asyncio.create_task(self._beat(replica))
            raise

    async def turn(self, role: Role) -> None:
        """Begin in the other role. `Flips` ensures before that the replica is empty and
        deregistered."""
        starting = StartingReplica(
            replica_id=self._id,
            role=role,
            stage=f"taking the role of {role}",
            is_flipped=self._is_other(role),
        )
        async with Startup(self._registry, starting):
            old, self.replica = self.replica, None
            assert old is not None, "it turns once at a time"
            await _until_hung_up(old)
            await old.stop_serving()
            telling = asyncio.create_task(old.send_spans())
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)
            await asyncio.to_thread(_check_is_empty, self._engine)
            await self.begin(role)

    async def drain(self) -> None:
        """Finish what is running, for as long as the configuration allows."""
        await self._flips.close()
        if self.replica is None:
            return
        draining = asyncio.create_task(self.replica.drain(self.config.health.drain_s))
        await asyncio.sleep(0)  # report at once that it is unready
        telling = asyncio.create_task(self.report_state())
        if not await draining:
            log.warning("%s leaves with requests unfinished; gateways place them again", self._id)
        telling.cancel()  # do not wait for a registry that ends, too: see FAREWELL_S
        await asyncio.wait([telling])

    async def leave(self) -> None:
        await self._flips.close()
        if self.replica is not None:
            assert self._heart is not None, "it has begun"
            self._heart.cancel()
            await self._try(self._leave(self.replica))
            await self.replica.stop()
        await asyncio.gather(*self._telling, return_exceptions=True)

    async def _leave(self, replica: Replica) -> None:
        async with asyncio.timeout(FAREWELL_S):
            await self._registry.leave(replica.info.epoch)
        await _until_hung_up(replica)

    def reconfigure(self, config: DeploymentConfig) -> None:
        """Go by `config`'s live settings from now on."""
        before, self.config = self.config, config
        if self.replica is not None:
            self.replica.reconfigure(before, config)

    def check_health(self) -> None:
        """Raises EngineFailed. A turning replica is healthy."""
        if self._failure is not None:
            raise EngineFailed(f"{self._id} could not take its role") from self._failure
        if self.replica is not None:
            self.replica.worker.core.check_health(limit_s=self.config.health.stuck_after_s)

    @property
    def is_ready(self) -> bool:
        return self.replica is not None and self.replica.info.is_ready

    def page(self) -> str:
        """The metrics page."""
        return "" if self.replica is None or self._page is None else self._page.text()

    async def spare(self, info: ReplicaInfo) -> str:
        may_be_last = info.role is Role.PREFILL and not self.config.prefill.replicas
        return await self._registry.spare(info.epoch, may_be_last)

    async def report_state(self) -> None:
        if self.replica is not None:
            await self._try(self._registry.heartbeat(self.replica.info))

    def fail(self, error: BaseException) -> None:
        """The replica has failed: its health check fails, and Serve replaces it."""
        self._failure = error

    def _is_other(self, role: Role) -> bool:
        return role is not self._assignment.role

    async def _beat(self, replica: Replica) -> None:
        """Send heartbeats at the registry's interval, and news within a second."""
        while True:
            told = replica.info
            rest_s = await self._try(heartbeat(self._registry, told, replica.chaos)) or HEARTBEAT_S
            rest_s *= random.uniform(0.9, 1.1)  # jitter, so that replicas do not beat in unison
            while rest_s > 0:
                await asyncio.sleep(min(rest_s, HEARTBEAT_S))
                is_due = replica.info != told or self._registry.is_cut
                rest_s = 0.0 if is_due else rest_s - HEARTBEAT_S

    async def _try(self, call: Coroutine[Any, Any, Answer]) -> Answer | None:
        try:
            return await call
        except Exception as error:
            log.warning("%s cannot reach the registry: %r", self._id, error)
            return None


async def _until_hung_up(replica: Replica) -> None:
    """Wait until gateways have ended their streams, but not for one that does not know yet."""
    with suppress(TimeoutError):
        async with asyncio.timeout(HANG_UP_S):
            while replica.num_gateway_streams:
                await asyncio.sleep(LOOK_S)


def _check_is_empty(engine: Engine) -> None:
    """Raises EngineFailed if blocks are still held, since they would leak. Called between two
    incarnations."""
    left = audit(engine.pool.census(), engine.request_ids, ())
    num_held = left.quarantined + left.leased + left.live
    if num_held or left.violations:
        why = "; ".join(left.violations) or "of requests"
        raise EngineFailed(
            f"it left its role with {count_of(num_held, 'block')} of KV still held: {why}"
        )
