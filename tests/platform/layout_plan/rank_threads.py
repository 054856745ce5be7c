"""All ranks of a replica in this process, a thread each, and every message that they send."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor

from baton.engine.assemble import assemble_engine, follow_lead
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import RankGroup, Rendezvous, join, listen
from baton.platform.layout_plan.transfers import Kind

HOST = "127.0.0.1"
Calls = Counter[tuple[Kind, int, int]]
"""By kind, how many ranks the group has, and the bytes of x."""

KINDS = {
    "all_reduce_": Kind.ALL_REDUCE,
    "all_gather": Kind.ALL_GATHER,
    "broadcast_": Kind.BROADCAST,
    "all_to_all": Kind.ALL_TO_ALL,
    "send": Kind.SEND,
    "receive_": Kind.RECEIVE,
    "gather": Kind.ALL_GATHER,
}


@dataclass
class Messages:
    """Of groups, from now on."""

    by_rank: dict[int, Calls] = field(default_factory=lambda: defaultdict(Counter))

    def count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, kind in KINDS.items():
            monkeypatch.setattr(RankGroup, name, self._counted(kind, getattr(RankGroup, name)))

    def _counted(self, kind: Kind, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(group: RankGroup, x: Tensor | array[int], *arguments: Any) -> Any:
            num_bytes = x.nbytes if isinstance(x, Tensor) else len(x) * x.itemsize
            self.by_rank[group.members[group.rank]][kind, group.size, num_bytes] += 1
            return method(group, x, *arguments)

        return counted


def on_threads(
    folder: Path, config: EngineConfig, mesh: Mesh, lead: Callable[[Engine], None]
) -> None:
    """Every engine of the mesh is given to `lead`, and closed; all other ranks follow theirs."""
    listener = listen(HOST)
    meeting = Rendezvous(host=HOST, port=listener.getsockname()[1], mesh=mesh, backend="gloo")
    options: dict[str, Any] = {"device": "cpu", "dtype": "float32"}

    def be(rank: int) -> None:
        torch.set_num_threads(1)
        groups = join(meeting, rank, listener if rank == 0 else None)
        if groups.engine.rank:
            follow_lead(folder, config, groups, **options)
            return
        engine = assemble_engine(folder, config, groups=groups, **options)
        lead(engine)
        runner: Any = engine.runner
        runner.close()

    ends: list[Future[None]] = [Future() for _ in range(mesh.size)]
    for rank, end in enumerate(ends):
        Thread(target=_told, args=(end, be, rank), daemon=True).start()
    done, _ = wait(ends, return_when=FIRST_EXCEPTION)  # the others would wait for it for ever
    for end in done:
        end.result()


def _told(end: Future[None], be: Callable[[int], None], rank: int) -> None:
    try:
        be(rank)
    except BaseException as error:
        end.set_exception(error)
    else:
        end.set_result(None)
