"""The life of one replica in its process: load, register, stay registered, drain, leave.

    load     the registry hears how much of the weights is read (platform/replica/startup.py)
    serve    worker and server start; from now on a heartbeat tells where
    drain    unready, which the registry hears at once; then requests finish, or go elsewhere
    leave    the registry forgets it; server and worker end, the engine's ranks remain

A replica serves on without a registry: it is a hint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import torch

from baton.core.errors import EngineFailed
from baton.core.messages import HEARTBEAT_S, Role
from baton.engine.assemble import find_device
from baton.engine.engine import Engine
from baton.engine.mesh.ranks import MeshGroups
from baton.kernels.cpu.library import library
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.faults.events import heartbeat
from baton.platform.machine.core_share import fair_share, share_of_cores
from baton.platform.observe.process_port import ProcessPort
from baton.platform.replica.assignment import Assignment
from baton.platform.replica.replica import Replica, load_engine, start_replica
from baton.platform.replica.replica_page import ReplicaPage
from baton.platform.replica.startup import Startup

log = logging.getLogger(__name__)


class Lifetime:
    def __init__(self, assignment: Assignment, startup: Startup) -> None:
        self._config = assignment.config
        self._role = assignment.role
        self._folder = assignment.folder
        self._id = assignment.replica_id
        self._registry = assignment.registry
        self._startup = startup
        self._num_threads = assignment.pool.resources.num_threads
        self._engine: Engine | None = None
        self._replica: Replica | None = None
        self._heart: asyncio.Task[None] | None = None
        self._port = ProcessPort()
        """For probes from the first moment on: loading takes minutes, and is no illness."""

    @property
    def is_serving(self) -> bool:
        return self._replica is not None

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "nothing is loaded yet"
        return self._engine

    async def answer_probes(self, host: str) -> None:
        """Tell Prometheus and probes about this process, at `host` unless configured otherwise."""
        metrics = self._config.metrics
        if metrics.enabled:
            is_prefill = self._role is Role.PREFILL
            port = metrics.prefill_port if is_prefill else metrics.decode_port
            await self._port.start(metrics.host or host, port)

    async def load(self, groups: MeshGroups) -> None:
        """Raises CheckpointError or InvalidConfig for what cannot be served."""
        torch.set_num_threads(self._num_threads or share_of_cores(self._config))
        if find_device(self._config.device) == "cpu":
            self._startup.enter("preparing kernels")
            await asyncio.to_thread(library)  # found, or compiled, which takes a minute
        self._startup.enter("loading weights")

        def progress(num_bytes: int, total: int) -> None:
            self._startup.advance(num_bytes / max(1, total))

        self._engine = await load_engine(self._config, self._role, self._folder, progress, groups)

    async def serve(self, host: str) -> None:
        """On a free port of `host`."""
        engine = self.engine
        device, dtype = engine.runner.cache.device.type, engine.info.dtype
        torch.set_num_threads(self._num_threads or fair_share(self._config, device, dtype))
        self._startup.enter("starting")
        self._replica = await start_replica(
            self._config, self._role, engine, replica_id=self._id, host=host
        )
        self._heart = asyncio.create_task(self._beat(self._replica))
        core = self._replica.worker.core
        self._port.pages.metrics = ReplicaPage(self._replica, self._config.metrics).text
        self._port.pages.is_ready = lambda: not core.is_draining
        self._port.pages.is_well = self._is_well

    def _is_well(self) -> bool:
        try:
            self.check_health()
        except EngineFailed:
            return False
        return True

    def reconfigure(self, config: DeploymentConfig) -> None:
        """Go by `config`'s live settings from now on."""
        before, self._config = self._config, config
        if self._replica is not None:
            self._replica.reconfigure(before, config)

    def gauges(self) -> dict[str, float]:
        """How busy it is, by the names of `platform/cluster/operator_gauges.py`."""
        if self._replica is None:
            return {}
        capacity, num_blocks = self._replica.worker.capacity(), self._replica.info.num_blocks
        return {
            "baton_running_requests": capacity.num_running,
            "baton_waiting_requests": capacity.num_waiting,
            "baton_queued_tokens": capacity.num_queued_tokens,
            "baton_kv_used_ratio": 1 - capacity.num_free_blocks / num_blocks,
            "baton_draining": capacity.is_draining,
        }

    def check_health(self) -> None:
        """Raises EngineFailed. Who does not serve yet is well."""
        if self._replica is not None:
            self._replica.worker.core.check_health(limit_s=self._config.health.stuck_after_s)

    async def drain(self) -> None:
        """For as long as the configuration allows."""
        if self._replica is None:
            return
        draining = asyncio.create_task(self._replica.drain(self._config.health.drain_s))
        await asyncio.sleep(0)  # by now it calls itself unready: say so
        await self._try(self._registry.heartbeat(self._replica.info))
        if not await draining:
            log.warning("%s leaves with requests unfinished; gateways place them again", self._id)

    async def leave(self) -> None:
        if self._replica is None or self._heart is None:
            return
        self._heart.cancel()
        await self._try(self._registry.leave(self._replica.info.epoch))
        await self._replica.stop()
        await self._port.stop()

    async def _beat(self, replica: Replica) -> None:
        while True:
            await self._try(heartbeat(self._registry, replica.info, replica.chaos))
            await asyncio.sleep(HEARTBEAT_S)

    async def _try(self, call: Coroutine[Any, Any, None]) -> None:
        try:
            await call
        except Exception as error:
            log.warning("%s cannot reach the registry: %r", self._id, error)
