"""The further ranks of a replica: actors in its placement group.

    replica   rank 0, leads: engine, worker, server          first bundle
    rank 1..  follow: further ranks, no port                 one bundle each, on the same node;
                                                             by its links:
                                                             platform/machine/rank_placement.py

    data 2    the first rank of each engine leads: it serves beside the replica, under a name and at
              an address of its own          one bundle an engine: they may be on unlike nodes

No part of a pass goes through Ray. A rank's failure to load is reported as the replica's. Once the
replica serves, a rank that ends or falls silent ends all of them, since they are useless alone, and
Serve restarts the replica.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import ray
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from baton.engine.mesh.mesh import Mesh
from baton.platform.cluster.ranks.rank_actor import RankActor, closing
from baton.platform.cluster.ranks.rank_order import by_rank, own_location
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.replica.assignment import Assignment

if TYPE_CHECKING:
    from baton.engine.mesh.ranks import MeshGroups, Rendezvous
    from baton.engine.passes.runner import Runner

    Meeting = tuple[socket.socket, Rendezvous]
    """The lead's listening socket, and the rendezvous address."""

log = logging.getLogger(__name__)
NAMESPACE = "baton"
"""The Ray namespace of the actors' names."""
T = TypeVar("T")

CALL_PERIOD_S = 1.0
SILENT_S = 20.0
"""Seconds after which an unresponsive rank counts as gone."""
PARTING_S = 5.0
"""Seconds for a rank to end, or to report why it failed."""


class Others(Protocol):
    async def first_end(self, patience_s: float | None = None) -> str:
        """Errors of the ranks that end first; empty if none ends within `patience_s`."""


class OtherRanks:
    """All ranks of a replica except the first, monitored."""

    def __init__(self, assignment: Assignment, meeting: Meeting, actors: Sequence[Any]) -> None:
        """`actors` are to be the ranks 1.., in this order."""
        self._listener, self._meeting = meeting
        self._actors = actors
        leads = self._meeting.mesh.leads
        self._leads = [actors[rank - 1] for rank in leads if rank]
        self._ends = []
        for rank, actor in enumerate(actors, start=1):
            begin = actor.lead if rank in leads else actor.follow
            begin = begin.options(name=assignment.task_name(rank))
            end = _end_of(rank, begin.remote(assignment, self._meeting, rank))
            self._ends.append(asyncio.create_task(end))
        self._fate: asyncio.Task[None] | None = None

    async def join(self) -> MeshGroups:
        """Join them as rank 0."""
        from baton.engine.mesh.ranks import join

        return await asyncio.to_thread(join, self._meeting, 0, self._listener)

    async def first_end(self, patience_s: float | None = None) -> str:
        done, _ = await asyncio.wait(
            self._ends, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
        )
        return "; ".join(end.result() for end in done)

    def end_with_ranks(self) -> None:
        """From now on this process ends as soon as one of them ends."""
        self._fate = asyncio.create_task(self._await_first_end())

    async def reconfigure(self, config: DeploymentConfig) -> None:
        """Reconfigure the leads; a rank that is gone ends all of them anyway."""
        told = [actor.reconfigure.remote(config) for actor in self._actors]
        await asyncio.gather(*told, return_exceptions=True)

    async def drain(self) -> None:
        """Drain the leads; a rank that is gone has nothing to drain."""
        drains = [lead.drain.remote() for lead in self._leads]
        await asyncio.gather(*drains, return_exceptions=True)

    async def let_go(self, runner: Runner) -> None:
        """End the ranks, by force if they do not end by themselves."""
        if self._fate is not None:
            self._fate.cancel()
        for lead in self._leads:
            lead.leave.remote()
        with suppress(RuntimeError, TimeoutError):  # already gone, or unresponsive
            await asyncio.wait_for(asyncio.to_thread(closing(runner)), PARTING_S)
        await asyncio.wait(self._ends, timeout=PARTING_S)
        for actor in self._actors:
            ray.kill(actor)

    async def _await_first_end(self) -> None:
        silences = [
            asyncio.create_task(_silence_of(rank, actor))
            for rank, actor in enumerate(self._actors, start=1)
        ]
        done, _ = await asyncio.wait((*self._ends, *silences), return_when=asyncio.FIRST_COMPLETED)
        log.critical("this replica ends: %s", "; ".join(task.result() for task in done))
        os._exit(1)


async def call_others(assignment: Assignment, host: str) -> OtherRanks | None:
    """Start the other ranks; None for a replica of one rank. Raises Ray's error if a process
    fails."""
    from baton.engine.assemble import find_device
    from baton.engine.mesh.ranks import Rendezvous, listen

    mesh = assignment.pool.parallel.mesh
    if mesh.size == 1:
        return None
    device = find_device(assignment.config.device)
    actors = await by_rank(mesh, device, own_location(device), _start_actors(assignment))
    listener = listen(host)
    meeting = Rendezvous(
        host=host,
        port=listener.getsockname()[1],
        mesh=mesh,
        backend="nccl" if device == "cuda" else "gloo",
    )
    return OtherRanks(assignment, (listener, meeting), actors)


def bundles_of(mesh: Mesh) -> tuple[int, int]:
    """Ranks per bundle, and the number of bundles: one bundle per engine with several engines,
    since an engine's ranks must share a node."""
    return (1, mesh.size) if mesh.data == 1 else (mesh.engine.size, mesh.data)


def strategy_of(mesh: Mesh) -> str:
    """The placement strategy: Ray keeps a bundle on one node, and several engines may be on
    different nodes."""
    return "STRICT_PACK" if mesh.data == 1 else "PACK"


def _start_actors(assignment: Assignment) -> list[Any]:
    """Start all ranks except the first, which is the replica itself."""
    pool = assignment.pool
    group = get_current_placement_group()
    assert group is not None, "Serve places replicas of several ranks in groups"
    actor: Any = ray.remote(RankActor)
    bundle, _ = bundles_of(pool.parallel.mesh)
    return [
        actor.options(
            name=assignment.actor_name(process),
            namespace=NAMESPACE,
            num_cpus=pool.resources.num_cpus,
            num_gpus=pool.resources.num_gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=process // bundle
            ),
        ).remote(assignment.actor_name(process))
        for process in range(1, pool.parallel.size)
    ]


async def together(others: Others | None, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises RuntimeError with a rank's error if one ends before."""
    if others is None:
        return await work
    own, end = asyncio.create_task(work), asyncio.create_task(others.first_end())
    await asyncio.wait((own, end), return_when=asyncio.FIRST_COMPLETED)
    end.cancel()
    if not own.done() or isinstance(own.exception(), RuntimeError):
        reason = await others.first_end(PARTING_S)  # the rank that failed first knows the cause
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
            async with asyncio.timeout(SILENT_S):
                await actor.is_there.remote()
        except Exception as error:
            return f"rank {rank} does not answer: {error!r}"
        await asyncio.sleep(CALL_PERIOD_S)
