"""Binds the threads of a rank to the cores of a NUMA node, next to its memory.

    ranks of this machine    rank 0   rank 1   rank 2     each takes the first slot that is free,
    slots     NUMA node 0    slot 0            slot 1     one per node before two on one
              NUMA node 1             slot 0

A rank takes its slot before it allocates anything. All its threads stay on the CPUs of its nodes,
and memory comes from the node of the core that first touches it, so weights and KV are local to the
threads that read them. A rank of several nodes has its weights in parts, each on the node of the
threads that read it (kernels/cpu/thread_places.py); its KV is spread over its nodes according to
which threads wrote it. Neither libnuma nor `mbind`, which a container may forbid, is needed.

A slot is a name that only one process of the machine can have at a time: an abstract socket, which
the kernel releases when the process ends, in whatever way. Containers with network namespaces of
their own do not see each other's slots. Therefore, among nodes with as many slots taken, the one
with the least memory in use comes first; to be certain, give each container a node of its own with
a cpuset (Kubernetes: `static` CPU manager).
"""

from __future__ import annotations

import errno
import logging
import os
import random
import re
import socket
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from baton.core.control_groups import text_of
from baton.core.cores import usable_cores
from baton.core.wording import count_of
from baton.platform.machine.numa_nodes import NumaNode, Part, num_cores, numa_nodes, parts_for

log = logging.getLogger(__name__)

GIB = 1 << 30
_IN_USE = re.compile(r"(?:AnonPages|Shmem):\s*(\d+) kB")

Claim = socket.socket


@dataclass(frozen=True, slots=True)
class NumaBinding:
    """The cores of one rank, for as long as its process lives."""

    nodes: tuple[NumaNode, ...]
    cores: int
    ranks: int
    """The number of ranks that share `cores`."""
    claims: tuple[Claim, ...] = ()

    def num_threads(self, *, num_left: int = 0) -> int:
        """Threads of the rank, when `num_left` of the cores are left to the gateway."""
        return max(1, (self.cores - num_left) // self.ranks)

    def release(self) -> None:
        """Release the slot for others; threads stay pinned."""
        for each in self.claims:
            each.close()

    def places(self, num_threads: int) -> list[frozenset[int]]:
        """CPUs of each thread that computes: of the node whose part of the weights it reads, and
        one a core, if there are cores for all."""
        has_cores = num_threads <= num_cores(self.nodes)
        cpus = [node.one_cpu_a_core if has_cores else node.cpus for node in self.nodes]
        by_core = [cpus[i] for i, node in enumerate(self.nodes) for _ in node.cores]
        return [by_core[thread * len(by_core) // num_threads] for thread in range(num_threads)]


def bind_to_numa_nodes(
    num_ranks: int, num_threads: int, root: Path = Path("/")
) -> NumaBinding | None:
    """Bind all threads of this process, present and future. `num_threads`: the threads that a rank
    shall have; 0: its share of the cores. Returns None on a machine with one NUMA node, and if the
    system forbids binding."""
    nodes = numa_nodes(root)
    if len(nodes) < 2:
        return None
    cores = min(num_cores(nodes), max(1, int(usable_cores(root))))  # a quota may leave fewer
    parts = parts_for(nodes, num_ranks, num_threads or max(1, cores // num_ranks))
    try:
        part, claims = claim(by_memory(parts, root))
    except OSError as error:
        log.warning("threads are not kept to a NUMA node, no slot can be taken: %s", error)
        return None
    of_part, of_all = (num_cores(part.nodes), part.num_ranks), (cores, num_ranks)
    binding = NumaBinding(part.nodes, *min(of_part, of_all, key=lambda of: of[0] / of[1]), claims)
    names = " and ".join(str(node.number) for node in part.nodes)
    try:
        keep_to(part.cpus)
    except OSError as error:
        log.warning("threads are not kept to NUMA node %s: %s", names, error)
        binding.release()
        return None
    log.info(
        "threads and memory stay on NUMA node %s of %d, with %s",
        names,
        len(nodes),
        count_of(of_part[0], "core"),
    )
    return binding


def by_memory(parts: Sequence[Part], root: Path) -> list[Part]:
    """The one with least memory in use first; about as much is anybody's turn, for ranks that start
    at once and see nothing of each other."""
    return sorted(parts, key=lambda part: (used_memory(part, root) // GIB, random.random()))


def used_memory(part: Part, root: Path) -> int:
    """Bytes in use for ever: of processes and of shared memory, none of files' cache."""
    folder = root / "sys/devices/system/node"
    told = (text_of(folder / f"node{node.number}/meminfo") for node in part.nodes)
    return sum(1024 * int(kib) for text in told for kib in _IN_USE.findall(text))


def claim(parts: Sequence[Part]) -> tuple[Part, tuple[Claim, ...]]:
    """The first part that fewest ranks of this machine have, and what shows that it is taken.
    Raises OSError where there are no such names."""
    for slot in count():
        for part in parts:
            names = [f"\0baton-numa-{os.getuid()}-{node.number}-{slot}" for node in part.nodes]
            claims = _claim_all(names)
            if claims:
                return part, claims
    raise AssertionError("count() never ends")


def _claim_all(names: Collection[str]) -> tuple[Claim, ...]:
    """All of these names, or none of them."""
    claims: list[Claim] = []
    for name in names:
        claims.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        try:
            claims[-1].bind(name)
        except OSError as error:
            for each in claims:
                each.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return ()
    return tuple(claims)


def keep_to(cpus: Collection[int]) -> None:
    """All threads of this process, and those that they start, run on these CPUs from now on. Raises
    OSError where the system forbids it."""
    os.sched_setaffinity(0, cpus)
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), cpus)
