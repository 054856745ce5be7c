"""Replicas in one process that can take the other role, behind a registry that may be slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.in_process_fleet import Fleet, echo_engine, running_fleet

from baton.core.errors import EngineFailed
from baton.core.ids import Epoch, ReplicaId
from baton.core.replicas import ReplicaInfo, Role, StartingReplica
from baton.engine.engine import Engine
from baton.engine.speculation.assemble import speculation_of
from baton.gateway.fleet.membership.registry_follower import follow
from baton.platform.config.deployment import override
from baton.platform.registry.registry import Registry
from baton.platform.replica.assignment import Assignment
from baton.platform.replica.replica import Replica
from baton.platform.replica.serving import Serving
from baton.replica_core.replica_core import ReplicaCore


@dataclass
class CalledRegistry:
    """As replicas of other processes see it."""

    registry: Registry
    is_cut: bool = False
    is_away: bool = False
    """For those that say farewell."""
    may_forget: asyncio.Event = field(default_factory=asyncio.Event)
    asked_to_forget: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.may_forget.set()

    async def heartbeat(self, info: ReplicaInfo) -> float:
        return self.registry.heartbeat(info).beat_s

    async def leave(self, epoch: Epoch) -> None:
        self.asked_to_forget.set()
        await self.may_forget.wait()
        if self.is_away:
            raise ConnectionError("the registry is away")
        self.registry.leave(epoch)

    async def report_starting(self, starting: StartingReplica) -> float:
        return self.registry.report_starting(starting)

    async def spare(self, epoch: Epoch, may_be_last: bool) -> str:
        return self.registry.spare(epoch, may_be_last=may_be_last)


@dataclass
class TurningFleet:
    fleet: Fleet
    serving: dict[str, Serving]
    engines: dict[str, Engine]
    registry: CalledRegistry
    following: asyncio.Task[None]
    """What the registry says."""

    async def add(self, role: Role, **changes: Any) -> str:
        name = f"{role}-{len(self.serving) + 1}"
        engine = echo_engine(role, num_blocks=1024)  # nobody is preempted
        config = override(self.fleet.config, changes)
        engine.speculation = speculation_of(config.engine(role), engine.info, "cpu")
        self.engines[name] = engine
        assignment = Assignment(
            app_name="test",
            config=config,
            role=role,
            folder=Path(),
            replica_id=ReplicaId(name),
            registry=self.registry,
        )
        serving = Serving(assignment, self.engines[name], "127.0.0.1")
        self.serving[name] = serving
        await serving.begin(role)
        return name

    async def until(self, **roles: Role) -> None:
        """Replicas are known to the gateway in these roles, and reached."""
        wanted = {ReplicaId(name.replace("_", "-")): role for name, role in roles.items()}
        async with asyncio.timeout(120):
            while True:
                known = self.fleet.dispatcher.fleet.trouble_by_replica()
                there = {it.replica_id: it.role for it, why in known.items() if not why}
                linked = {it.info.replica_id for it in self.fleet.dispatcher.fleet.lending}
                linked |= {it.info.replica_id for it in self.fleet.dispatcher.fleet.connected}
                if all(there.get(n) == role and n in linked for n, role in wanted.items()):
                    return
                await asyncio.sleep(0.01)

    async def until_it_leaves(self) -> None:
        """The registry is asked to forget some replica, and has yet to do so."""
        async with asyncio.timeout(60):
            await self.registry.asked_to_forget.wait()

    async def flip(self, replica: str, to: str) -> int:
        told = await self.fleet.dispatcher.flip(replica, to)
        num_open: int = told["num_open"]
        return num_open

    def replica(self, name: str) -> Replica:
        replica = self.serving[name].replica
        assert replica is not None
        return replica

    def core(self, name: str) -> ReplicaCore:
        return self.replica(name).worker.core

    def is_well(self, name: str) -> bool:
        try:
            self.serving[name].check_health()
        except EngineFailed:
            return False
        return True

    async def why_not(self, name: str) -> str:
        """The replica stays what it is."""
        async with asyncio.timeout(60):
            while True:
                status = await self.fleet.dispatcher.status()
                [row] = [one for one in status["pools"]["decode"] if one["replica"] == name]
                if row["flip"]["failure"]:
                    return str(row["flip"]["failure"])


@asynccontextmanager
async def turning_fleet(prefill: int, decode: int, **changes: Any) -> AsyncIterator[TurningFleet]:
    async with running_fleet(prefill=0, decode=0, changes=changes) as fleet:
        following = asyncio.create_task(follow(fleet.registry, fleet.dispatcher.fleet))
        turning = TurningFleet(fleet, {}, {}, CalledRegistry(fleet.registry), following)
        roles = [Role.PREFILL] * prefill + [Role.DECODE] * decode
        names = [await turning.add(role) for role in roles]
        try:
            await turning.until(**dict(zip(names, roles, strict=True)))
            yield turning
        finally:
            turning.registry.may_forget.set()
            for serving in turning.serving.values():
                await serving.leave()
            following.cancel()
