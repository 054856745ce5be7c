"""Real ranks of one engine: this process leads, others follow over Gloo.

The others are started once and follow one lead after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from tests.warm_processes import warm_processes

from baton.core.kv_arena import Introduce
from baton.engine.assemble import assemble_engine, follow_lead
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import Rendezvous, join, listen
from baton.engine.ranks.lead import LeadRunner

HOST = "127.0.0.1"
END_S = 120.0
"""Only keeps a failing test from hanging."""


@dataclass(frozen=True, slots=True)
class Follower:
    process: BaseProcess
    orders: Connection

    def outcome(self) -> str:
        """How its last lead ended for it: "" if that let it go."""
        if not self.orders.poll(END_S):
            return "it still follows"
        try:
            return str(self.orders.recv())
        except EOFError:
            return "it is gone"


@dataclass(slots=True)
class RankProcesses:
    followers: list[Follower] = field(default_factory=list)

    def some(self, count: int) -> list[Follower]:
        alive = [each for each in self.followers if each.process.is_alive()]
        new = [_start() for _ in range(count - len(alive))]
        self.followers = [*alive, *new]
        return self.followers[:count]

    def close(self) -> None:
        for follower in self.followers:
            follower.process.kill()
            follower.process.join()


def _start() -> Follower:
    warm = warm_processes()
    ours, theirs = warm.Pipe()
    process = warm.Process(target=_follow_leads, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return Follower(process, ours)


@contextmanager
def engine_on_ranks(
    processes: RankProcesses,
    folder: Path,
    config: EngineConfig,
    mesh: Mesh,
    *,
    follower_folder: Path | None = None,
    introduce: Introduce | None = None,
    **options: Any,
) -> Iterator[tuple[Engine, list[Follower]]]:
    """An engine on the ranks of a mesh, and those that follow it, or what another folder has.

    `introduce`, which must be a module's own function, is called in the followers' processes.
    """
    followers = processes.some(mesh.size - 1)
    listener = listen(HOST)
    meeting = Rendezvous(host=HOST, port=listener.getsockname()[1], mesh=mesh, backend="gloo")
    for rank, follower in enumerate(followers, start=1):
        while follower.orders.poll():  # how leads ended that nobody has asked about
            follower.orders.recv()
        follower.orders.send((meeting, rank, follower_folder or folder, config, introduce, options))
    groups = join(meeting, 0, listener)
    engine = assemble_engine(folder, config, groups=groups, device="cpu", **options)
    assert isinstance(engine.runner, LeadRunner)
    try:
        yield engine, followers
    finally:
        if all(follower.process.is_alive() for follower in followers):
            engine.runner.close()
            assert all(follower.orders.poll(END_S) for follower in followers), "let go, not back"
        else:  # ranks share the fate of one that died; this lead lives on, and is waited for
            for follower in followers:
                follower.process.kill()
                follower.process.join()


def _follow_leads(orders: Connection) -> None:
    torch.set_num_threads(1)
    while True:
        meeting, rank, folder, config, introduce, options = orders.recv()
        groups = join(meeting, rank)
        try:
            follow_lead(folder, config, groups, introduce=introduce, device="cpu", **options)
        except Exception as error:
            orders.send(repr(error))
        else:
            orders.send("")
