"""The life of one replica in its process: load, serve, drain, leave.

load     progress is reported to the registry (platform/replica/startup.py)
serve    in the role of its pool, or in the other: platform/replica/serving.py
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from baton.core.errors import EngineFailed
from baton.core.replicas import Role
from baton.engine.assemble import find_device
from baton.engine.engine import Engine
from baton.engine.mesh.ranks import MeshGroups
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.machine.core_share import num_left_to_gateway
from baton.platform.machine.rank_cores import RankCores
from baton.platform.observe.process_port import ProcessPort
from baton.platform.replica.assignment import Assignment
from baton.platform.replica.replica import Replica, load_engine
from baton.platform.replica.serving import Serving
from baton.platform.replica.startup import Startup


class Lifetime:
    def __init__(self, assignment: Assignment, startup: Startup) -> None:
        self._assignment = assignment
        self._config = assignment.config
        self._startup = startup
        self._is_on_cpu = find_device(assignment.config.device) == "cpu"
        self._cores = RankCores(
            assignment.config, assignment.pool.resources, is_on_cpu=self._is_on_cpu
        )
        self._engine: Engine | None = None
        self._serving: Serving | None = None
        self._port = ProcessPort()
        """The probe port, open from the start, since loading takes minutes and is not a failure."""

    @property
    def is_serving(self) -> bool:
        return self._serving is not None

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "nothing is loaded yet"
        return self._engine

    async def answer_probes(self, host: str) -> None:
        """Open the metrics and probe port, at `host` unless configured otherwise."""
        metrics = self._config.metrics
        if metrics.enabled:
            is_prefill = self._assignment.role is Role.PREFILL
            port = metrics.prefill_port if is_prefill else metrics.decode_port
            await self._port.start(metrics.host or host, port)

    async def load(self, groups: MeshGroups) -> None:
        """Load the engine. Raises CheckpointError or InvalidConfig."""
        self._cores.use()
        if self._is_on_cpu:
            self._startup.enter("preparing kernels")
            await asyncio.to_thread(self._cores.place_threads)
        self._startup.enter("loading weights")

        def progress(num_bytes: int, total: int) -> None:
            self._startup.advance(num_bytes / max(1, total))

        assigned = self._assignment
        self._engine = await load_engine(
            self._config,
            assigned.role,
            assigned.folder,
            progress,
            groups,
            adapters=assigned.adapters,
        )

    async def serve(self, host: str) -> None:
        """Serve on a free port of `host`."""
        engine, config = self.engine, self._config
        device, dtype = engine.runner.cache.device.type, engine.info.dtype
        self._cores.use(num_left=num_left_to_gateway(device, dtype))
        self._startup.enter("starting")
        serving = Serving(replace(self._assignment, config=config), engine, host)
        await serving.begin(self._assignment.role)
        self._serving = serving
        self._port.pages.metrics = serving.page
        self._port.pages.is_ready = lambda: serving.is_ready
        self._port.pages.is_well = self._is_well

    def _is_well(self) -> bool:
        try:
            self.check_health()
        except EngineFailed:
            return False
        return True

    def reconfigure(self, config: DeploymentConfig) -> None:
        """Use `config`'s live settings from now on."""
        self._config = config
        if self._serving is not None:
            self._serving.reconfigure(config)

    @property
    def role(self) -> Role:
        """Its current role; before it serves, its starting role."""
        replica = self._replica
        return self._assignment.role if replica is None else replica.info.role

    def gauges(self) -> dict[str, float]:
        """Its load, by the names of `platform/cluster/operator_gauges.py`."""
        replica = self._replica
        if replica is None:
            return {}
        capacity, num_blocks = replica.worker.capacity(), replica.info.num_blocks
        return {
            "baton_running_requests": capacity.num_running,
            "baton_waiting_requests": capacity.num_waiting,
            "baton_queued_tokens": capacity.num_queued_tokens,
            "baton_kv_used_ratio": 1 - capacity.num_free_blocks / num_blocks,
            "baton_draining": capacity.is_draining,
        }

    def check_health(self) -> None:
        """Raises EngineFailed. A loading replica is healthy."""
        if self._serving is not None:
            self._serving.check_health()

    async def drain(self) -> None:
        """Finish running requests, within the configured time."""
        if self._serving is not None:
            await self._serving.drain()

    async def leave(self) -> None:
        if self._serving is not None:
            await self._serving.leave()
            await self._port.stop()

    @property
    def _replica(self) -> Replica | None:
        return None if self._serving is None else self._serving.replica
