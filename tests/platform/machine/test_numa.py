"""Which NUMA nodes there are, who computes on which, and that threads stay there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from baton.platform.machine.numa_binding import GIB, NumaBinding, by_memory, used_memory
from baton.platform.machine.numa_nodes import NumaNode, Part, nodes_with, parts_for

TWO_SOCKETS = {0: "0-1,4-5", 1: "2-3,6-7", 2: ""}
"""Two cores of two hyperthreads each; the third node is memory alone."""
SIBLINGS = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
MEMORY = "Node 0 AnonPages: {kib} kB\nNode 0 Shmem: 0 kB\nNode 0 ShmemHugePages: 99 kB\n"


def machine(
    root: Path,
    cpus: dict[int, str] = TWO_SOCKETS,
    siblings: dict[int, str] = SIBLINGS,
    memory_of: str = "0-2",
) -> Path:
    files = {f"sys/devices/system/node/node{n}/cpulist": text for n, text in cpus.items()}
    for cpu, text in siblings.items():
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = text
    files["sys/devices/system/node/possible"] = "0-2"
    files["proc/self/status"] = f"Mems_allowed:\t7\nMems_allowed_list:\t{memory_of}\n"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def nodes(*num_cores: int) -> tuple[NumaNode, ...]:
    """Of cores without hyperthreads."""
    first, made = 0, []
    for number, count in enumerate(num_cores):
        made.append(NumaNode(number, tuple((cpu,) for cpu in range(first, first + count))))
        first += count
    return tuple(made)


@pytest.mark.parametrize(
    ("allowed", "memory_of", "cores"),
    [
        (range(8), "0-2", [((0, 4), (1, 5)), ((2, 6), (3, 7))]),
        ([1, 5, 7, 2], "0-2", [((1, 5),), ((2,), (7,))]),  # a cpuset that cuts through cores
        ([2, 3, 6, 7], "0-2", [((2, 6), (3, 7))]),
        (range(8), "0", []),  # docker --cpuset-mems=0: all memory is on one node
    ],
)
def test_nodes_have_the_cores_that_may_be_used(
    tmp_path: Path, allowed: list[int], memory_of: str, cores: list[tuple[tuple[int, ...], ...]]
) -> None:
    found = nodes_with(allowed, machine(tmp_path, memory_of=memory_of))

    assert [node.cores for node in found] == cores


def test_a_system_that_tells_of_no_nodes_has_none(tmp_path: Path) -> None:
    assert nodes_with(range(8), tmp_path) == ()


@pytest.mark.parametrize(
    ("machine", "num_ranks", "threads_each", "parts"),
    [
        ((32, 32), 2, 32, [((0,), 1), ((1,), 1)]),
        ((32, 32), 3, 21, [((0,), 2), ((1,), 1)]),
        ((32, 32), 1, 64, [((0, 1), 1)]),
        ((32, 32), 1, 8, [((0,), 1), ((1,), 1)]),  # told to have 8, or by a quota
        ((32, 32), 2, 200, [((0, 1), 2)]),
        ((8, 8, 8, 8), 2, 16, [((0, 1), 1), ((2, 3), 1)]),
        ((8, 8, 8), 2, 12, [((0, 1, 2), 2)]),
        ((20, 12), 2, 16, [((0,), 1), ((1,), 1)]),  # a cpuset that is uneven
    ],
)
def test_ranks_have_as_few_nodes_as_hold_their_threads(
    machine: tuple[int, ...],
    num_ranks: int,
    threads_each: int,
    parts: list[tuple[tuple[int, ...], int]],
) -> None:
    found = parts_for(nodes(*machine), num_ranks, threads_each)

    assert [(tuple(n.number for n in part.nodes), part.num_ranks) for part in found] == parts


def test_threads_of_several_nodes_are_spread_as_cores_are(tmp_path: Path) -> None:
    binding = NumaBinding(nodes_with(range(8), machine(tmp_path)), 4, 1)

    assert binding.places(4) == [{0, 1}, {0, 1}, {2, 3}, {2, 3}]  # a core each before hyperthreads
    assert binding.places(8) == [{0, 1, 4, 5}] * 4 + [{2, 3, 6, 7}] * 4


def test_a_seat_leaves_the_gateway_a_core_that_ranks_lack_together() -> None:
    binding = NumaBinding(nodes(8), cores=8, ranks=3)

    assert (binding.num_threads(), binding.num_threads(num_left=3)) == (2, 1)


def test_who_sees_no_other_begins_where_least_memory_is_in_use(tmp_path: Path) -> None:
    root = machine(tmp_path)
    parts = [Part((node,), 1) for node in nodes_with(range(8), root)]
    for part, gib in zip(parts, (30, 3), strict=True):
        folder = root / f"sys/devices/system/node/node{part.nodes[0].number}"
        (folder / "meminfo").write_text(MEMORY.format(kib=gib << 20))

    assert [used_memory(part, root) // GIB for part in parts] == [30, 3]
    assert by_memory(parts, root) == parts[::-1]


TAKE_A_SEAT = """
import os, sys, threading
from pathlib import Path
from baton.platform.machine.numa_binding import bind_to_numa_nodes
stop = threading.Event()
threading.Thread(target=stop.wait).start()
binding = bind_to_numa_nodes(2, 0, Path(sys.argv[1]))
found = {tuple(sorted(os.sched_getaffinity(int(task)))) for task in os.listdir("/proc/self/task")}
threads = 0 if binding is None else binding.num_threads()
print(sorted(found), threads, flush=True)
sys.stdin.read()
stop.set()
"""


@contextmanager
def rank(root: Path) -> Iterator[str]:
    """Where all threads of a process are that has taken a binding, and how many compute."""
    command = [sys.executable, "-c", TAKE_A_SEAT, str(root)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=environment) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def test_two_ranks_stay_on_a_node_each_and_who_ends_makes_room(tmp_path: Path) -> None:
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU")
    one, other = sorted(os.sched_getaffinity(0))[:2]
    first = 10 * os.getpid()  # slots are the machine's, and others may run this test, too
    root = machine(tmp_path, {first: str(one), first + 1: str(other)}, {}, f"{first}-{first + 1}")

    with rank(root) as a:
        with rank(root) as b, rank(root) as c:
            assert sorted({a, b}) == [f"[({one},)] 1", f"[({other},)] 1"]
            assert c in (a, b)  # two on one node, and nowhere else
        with rank(root) as again:
            assert again == b


def test_on_one_node_threads_run_anywhere(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    root = machine(tmp_path, {0: ",".join(map(str, allowed))}, {}, "0")

    with rank(root) as only:
        assert only == f"[{tuple(allowed)}] 0"
