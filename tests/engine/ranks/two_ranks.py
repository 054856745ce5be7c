"""Two ranks as threads of this process, over Gloo."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from functools import partial
from typing import TypeVar

from tests.engine.rank_processes import HOST

from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import MeshGroups, Rendezvous, join, listen

END_S = 240.0
"""Only keeps a failing test from hanging: Gloo waits for ever for a rank that does not come."""
TENSOR = Mesh(tensor=2)
Made = TypeVar("Made")


def on_two_ranks(run: Callable[[MeshGroups], Made], mesh: Mesh = TENSOR) -> list[Made]:
    """What each gives. Raises what the first raises that fails."""
    listener = listen(HOST)
    meeting = Rendezvous(host=HOST, port=listener.getsockname()[1], mesh=mesh, backend="gloo")
    joins = partial(join, meeting, 0, listener), partial(join, meeting, 1)
    ends: list[Future[Made]] = [Future() for _ in joins]

    def be(rank: int) -> None:
        try:
            ends[rank].set_result(run(joins[rank]()))
        except BaseException as error:
            ends[rank].set_exception(error)

    for rank in range(len(joins)):
        threading.Thread(target=be, args=(rank,), daemon=True).start()
    done, _ = wait(ends, END_S, FIRST_EXCEPTION)
    for end in done:
        end.result()
    return [end.result(timeout=0) for end in ends]
