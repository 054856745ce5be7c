"""The other ranks of a replica that is spread over several: actors in its placement group.

    replica   rank 0, leads: engine, worker, server          first bundle
    rank 1..  follow: a share of the model, no port          one bundle each, on the same node

Nothing of a pass goes through Ray. What a rank cannot load is told as the replica's own failure.
Once the replica serves, a rank that ends or falls silent takes it along within moments: their
shares of the KV are worth nothing without each other, and Serve starts all anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import ray
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from baton.core.messages import Role
from baton.platform.config import DeploymentConfig, PoolConfig

if TYPE_CHECKING:
    from baton.engine.parallel.ranks import MeshGroups, Rendezvous
    from baton.engine.runner import Runner

log = logging.getLogger(__name__)
T = TypeVar("T")

CALL_PERIOD_S = 1.0
SILENT_S = 20.0
"""After which a rank that does not answer is taken for gone."""
PARTING_S = 5.0
"""For a rank to end that was let go, or to say why it failed."""


def pool_of(config: DeploymentConfig, role: Role) -> PoolConfig:
    return config.prefill if role is Role.PREFILL else config.decode


class Others(Protocol):
    async def first_end(self, patience_s: float | None = None) -> str:
        """What those say that end before the others; nothing if none does in that time."""


class RankActor:
    """One rank that follows; its process does nothing else but answer that it is there."""

    def follow(
        self,
        config: DeploymentConfig,
        role: Role,
        folder: Path,
        meeting: Rendezvous,
        rank: int,
    ) -> None:
        """Returns when the lead lets go, and raises when it is gone."""
        import torch

        from baton.engine.assemble import follow_lead
        from baton.engine.parallel.ranks import join
        from baton.platform.core_share import share_of_cores

        pool = pool_of(config, role)
        torch.set_num_threads(pool.resources.num_threads or share_of_cores(config))
        follow_lead(
            folder,
            replace(pool.engine, kv_shares=config.gateway.kv_shares),
            join(meeting, rank),
            dtype=config.dtype,
            device=config.device,
            load_format=config.load_format,
            quantize=config.quantize,
        )

    def is_there(self) -> None:
        """Answers while `follow` runs."""


class Followers:
    """All ranks of a replica but its own, watched."""

    def __init__(self, config: DeploymentConfig, role: Role, folder: Path, host: str) -> None:
        from baton.engine.assemble import find_device
        from baton.engine.parallel.ranks import Rendezvous, listen

        self._listener = listen(host)
        self._meeting = Rendezvous(
            host=host,
            port=self._listener.getsockname()[1],
            mesh=pool_of(config, role).parallel.mesh,
            backend="nccl" if find_device(config.device) == "cuda" else "gloo",
        )
        group = get_current_placement_group()
        assert group is not None, "Serve places replicas of several ranks in groups"
        resources = pool_of(config, role).resources
        actor: Any = ray.remote(RankActor)
        self._actors: list[Any] = [
            actor.options(
                num_cpus=resources.num_cpus,
                num_gpus=resources.num_gpus,
                max_concurrency=2,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=rank
                ),
            ).remote()
            for rank in range(1, self._meeting.mesh.size)
        ]
        self._ends = [
            asyncio.create_task(
                _end_of(rank, actor.follow.remote(config, role, folder, self._meeting, rank))
            )
            for rank, actor in enumerate(self._actors, start=1)
        ]
        self._fate: asyncio.Task[None] | None = None

    async def join(self) -> MeshGroups:
        """Be their lead."""
        from baton.engine.parallel.ranks import join

        return await asyncio.to_thread(join, self._meeting, 0, self._listener)

    async def first_end(self, patience_s: float | None = None) -> str:
        done, _ = await asyncio.wait(
            self._ends, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
        )
        return "; ".join(end.result() for end in done)

    def share_fate(self) -> None:
        """From now on this process ends as soon as one of them does."""
        self._fate = asyncio.create_task(self._end_with_them())

    async def let_go(self, runner: Runner) -> None:
        """Whoever has not ended by himself then is ended."""
        from baton.engine.parallel.lead import LeadRunner

        assert isinstance(runner, LeadRunner)
        if self._fate is not None:
            self._fate.cancel()
        with suppress(RuntimeError, TimeoutError):  # one is gone already, or not listening
            await asyncio.wait_for(asyncio.to_thread(runner.close), PARTING_S)
        await asyncio.wait(self._ends, timeout=PARTING_S)
        for actor in self._actors:
            ray.kill(actor)

    async def _end_with_them(self) -> None:
        silences = [
            asyncio.create_task(_silence_of(rank, actor))
            for rank, actor in enumerate(self._actors, start=1)
        ]
        done, _ = await asyncio.wait((*self._ends, *silences), return_when=asyncio.FIRST_COMPLETED)
        log.critical("this replica ends: %s", "; ".join(task.result() for task in done))
        os._exit(1)


def call_followers(
    config: DeploymentConfig, role: Role, folder: Path, host: str
) -> Followers | None:
    """None for a replica of one rank."""
    if pool_of(config, role).parallel.size == 1:
        return None
    return Followers(config, role, folder, host)


async def together(others: Others | None, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. Raises RuntimeError with what a rank says that ends before it."""
    if others is None:
        return await work
    own, end = asyncio.create_task(work), asyncio.create_task(others.first_end())
    await asyncio.wait((own, end), return_when=asyncio.FIRST_COMPLETED)
    end.cancel()
    if not own.done() or isinstance(own.exception(), RuntimeError):
        reason = await others.first_end(PARTING_S)  # the one that broke it knows best why
        if reason:
            raise RuntimeError(reason)
    return await own


async def _end_of(rank: int, follow: Any) -> str:
    try:
        await follow
    except Exception as error:
        cause = getattr(error, "cause", error)
        return f"rank {rank} has ended: {type(cause).__name__}: {cause}"
    return f"rank {rank} was let go"


async def _silence_of(rank: int, actor: Any) -> str:
    while True:
        try:
            await asyncio.wait_for(actor.is_there.remote(), SILENT_S)
        except Exception as error:
            return f"rank {rank} does not answer: {error!r}"
        await asyncio.sleep(CALL_PERIOD_S)
