"""On how many machines ranks are, as they find out themselves."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import ALONE, Rendezvous, join, listen
from baton.engine.sharding import held_experts
from baton.engine.sharding.held_experts import num_machines

HOST = "127.0.0.1"


@pytest.mark.parametrize(
    ("machines", "found"),
    [
        (("a", "a", "b", "b"), 2),
        (("a", "b", "c", "d"), 4),
        (("a", "a", "a", "a"), 1),
        (("a", "b", "a", "b"), 1),
        (("a", "a", "a", "b"), 1),
    ],
)
def test_machines_count_where_each_has_as_many_neighbours(
    machines: Sequence[str], found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.local()
    monkeypatch.setattr(held_experts, "_machine", lambda: here.name)
    listener, size = listen(HOST), len(machines)
    mesh, port = Mesh(data=size, expert=size), listener.getsockname()[1]
    meeting = Rendezvous(host=HOST, port=port, mesh=mesh, backend="gloo")

    def be(rank: int) -> int:
        here.name = machines[rank]
        return num_machines(join(meeting, rank, listener if rank == 0 else None).expert)

    with ThreadPoolExecutor(size) as threads:
        assert list(threads.map(be, range(size))) == [found] * size


def test_one_rank_is_on_one_machine_which_has_a_name() -> None:
    assert num_machines(ALONE) == 1
    assert held_experts._machine()
