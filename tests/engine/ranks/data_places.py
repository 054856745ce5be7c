"""Engines that share experts, one in each process: this one has the first, others theirs.

Each is given its own requests, computes them, and keeps pace until all are done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from tests.engine.rank_processes import END_S, HOST
from tests.warm_processes import warm_processes

from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine, follow_lead
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import Rendezvous, join, listen
from baton.engine.ranks.lockstep import LockstepRunner
from baton.engine.request.request import Request

Prompts = Sequence[Sequence[int]]
Work = tuple[Path, EngineConfig, dict[str, Any], Rendezvous]


@dataclass(frozen=True, slots=True)
class Place:
    """A rank in another process."""

    process: BaseProcess
    orders: Connection

    def outcome(self) -> Any:
        """The tokens of its requests, or how it ended."""
        if not self.orders.poll(END_S):
            return "it still computes"
        try:
            return self.orders.recv()
        except EOFError:
            return "it is gone"


class DataPlaces:
    """Processes that are ranks of one replica after the other."""

    def __init__(self) -> None:
        self._places: list[Place] = []

    def some(self, count: int) -> list[Place]:
        alive = [each for each in self._places if each.process.is_alive()]
        self._places = [*alive, *(_start() for _ in range(count - len(alive)))]
        return self._places[:count]

    def close(self) -> None:
        """End them; who wants some later gets new ones."""
        for place in self._places:
            place.process.kill()
            place.process.join()
            place.orders.close()
        self._places = []


@contextmanager
def first_of(
    processes: DataPlaces,
    folder: Path,
    config: EngineConfig,
    mesh: Mesh,
    prompts: Sequence[Prompts],
    **options: Any,
) -> Iterator[tuple[Engine, list[Place]]]:
    """The engine of the first data place, and the processes of all other ranks, of which the leads
    have begun with the prompts of theirs: `prompts[place - 1]`. A test that fails with it may leave
    them in the midst of a pass: they are ended."""
    places = processes.some(mesh.size - 1)
    listener = listen(HOST)
    meeting = Rendezvous(host=HOST, port=listener.getsockname()[1], mesh=mesh, backend="gloo")
    work: Work = (folder, config, options, meeting)
    try:
        for rank, place in enumerate(places, start=1):
            at = mesh.place(rank)
            while place.orders.poll():  # outcomes that nobody has asked for
                place.orders.recv()
            own = prompts[at.data - 1] if at.data else ()
            place.orders.send((work, rank, own, at.tensor == 0))
        groups = join(meeting, 0, listener)
        yield assemble_engine(folder, config, groups=groups, device="cpu", **options), places
    except BaseException:
        processes.close()
        raise


def leave(engine: Engine) -> None:
    """Once all others have computed theirs."""
    assert isinstance(engine.runner, LockstepRunner)
    engine.runner.close()


def greedy(engine: Engine, prompts: Prompts, max_tokens: int) -> list[list[int]]:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    requests = [
        Request(f"{number}", list(prompt), sampling=sampling)
        for number, prompt in enumerate(prompts)
    ]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        assert not engine.step().is_stalled
    return [request.output for request in requests]


MAX_TOKENS = 10


def _start() -> Place:
    warm = warm_processes()
    ours, theirs = warm.Pipe()
    process = warm.Process(target=_take_places, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return Place(process, ours)


def _take_places(orders: Connection) -> None:
    torch.set_num_threads(1)
    while True:
        try:
            orders.send(_take_place(*orders.recv()))
        except EOFError:
            return
        except Exception as error:
            orders.send(repr(error))


def _take_place(work: Work, rank: int, prompts: Prompts, is_lead: bool) -> Any:
    folder, config, options, meeting = work
    groups = join(meeting, rank)
    if not is_lead:
        return follow_lead(folder, config, groups, device="cpu", **options)
    engine = assemble_engine(folder, config, groups=groups, device="cpu", **options)
    found = greedy(engine, prompts, MAX_TOKENS)
    leave(engine)
    return found
