"""An engine on several ranks of this machine: a process each, one thread each; this one leads."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from baton.engine.assemble import ModelOptions, assemble_engine, follow_lead
from baton.engine.config import EngineConfig
from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import Rendezvous, join, listen
from baton.engine.ranks.lead import LeadRunner

LOOPBACK = "127.0.0.1"


@contextmanager
def runner_on_ranks(
    folder: Path, config: EngineConfig, mesh: Mesh, options: ModelOptions
) -> Iterator[LeadRunner]:
    """The runner of the leading rank."""
    listener = listen(LOOPBACK)
    meeting = Rendezvous(host=LOOPBACK, port=listener.getsockname()[1], mesh=mesh, backend="gloo")
    spawn = multiprocessing.get_context("spawn")
    others = [
        spawn.Process(target=_follow, args=(folder, config, meeting, rank, options), daemon=True)
        for rank in range(1, mesh.size)
    ]
    for other in others:
        other.start()
    engine = assemble_engine(folder, config, groups=join(meeting, 0, listener), **options)
    assert isinstance(engine.runner, LeadRunner)
    yield engine.runner
    engine.runner.close()
    for other in others:
        other.join()


def _follow(
    folder: Path, config: EngineConfig, meeting: Rendezvous, rank: int, options: ModelOptions
) -> None:
    torch.set_num_threads(1)
    follow_lead(folder, config, join(meeting, rank), **options)
