"""The NUMA nodes whose cores this process may use, and how ranks share them.

    /sys/devices/system/node/node0/cpulist                        0-15,32-47: CPUs of a node
    /sys/devices/system/cpu/cpu0/topology/thread_siblings_list    0,32: CPUs that are one core
    /proc/self/status                                             memory that may be had

A cpuset or `taskset` may leave only the CPUs of one node. The plan is a function of these facts;
numa_binding.py assigns its parts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from baton.core.control_groups import text_of

_NODE = re.compile(r"node(\d+)")
_MEMORY = re.compile(r"^Mems_allowed_list:\s*(\S*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NumaNode:
    number: int
    cores: tuple[tuple[int, ...], ...]
    """Usable CPUs of each physical core: more than one where it has hyperthreads."""

    @property
    def cpus(self) -> frozenset[int]:
        return frozenset(cpu for core in self.cores for cpu in core)

    @property
    def one_cpu_a_core(self) -> frozenset[int]:
        """One CPU per physical core."""
        return frozenset(core[0] for core in self.cores)


def numa_nodes(root: Path = Path("/")) -> tuple[NumaNode, ...]:
    """The nodes with CPUs that this process may use, in order. None if the system reports none, or
    restricts memory to some of them."""
    if not hasattr(os, "sched_getaffinity"):
        return ()
    return nodes_with(os.sched_getaffinity(0), root)


def nodes_with(allowed: Collection[int], root: Path = Path("/")) -> tuple[NumaNode, ...]:
    """The same for these CPUs."""
    folder = root / "sys/devices/system/node"
    try:
        numbers = sorted(
            int(found[1]) for path in folder.iterdir() if (found := _NODE.fullmatch(path.name))
        )
    except OSError:
        return ()
    nodes = []
    for number in numbers:
        cpus = cpus_of(text_of(folder / f"node{number}/cpulist")) & set(allowed)
        if cpus:
            nodes.append(NumaNode(number, tuple(_cores(cpus, root))))
    memory = _MEMORY.search(text_of(root / "proc/self/status"))
    if memory is not None and not {node.number for node in nodes} <= cpus_of(memory[1]):
        return ()
    return tuple(nodes)


def cpus_of(listed: str) -> set[int]:
    """The CPU numbers of a kernel list such as `0-3,8`."""
    found = set[int]()
    for part in listed.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found.update(range(int(first), int(last or first) + 1))
    return found


def _cores(cpus: set[int], root: Path) -> Iterator[tuple[int, ...]]:
    """Cores in the order of their first CPUs."""
    left = set(cpus)
    for cpu in sorted(cpus):
        if cpu in left:
            path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
            core = {cpu} | (cpus_of(text_of(path)) & left)
            left -= core
            yield tuple(sorted(core))


def num_cores(nodes: Sequence[NumaNode]) -> int:
    """Physical cores."""
    return sum(len(node.cores) for node in nodes)


@dataclass(frozen=True, slots=True)
class Part:
    """NUMA nodes that ranks compute on, and as many of the ranks as are to be there."""

    nodes: tuple[NumaNode, ...]
    num_ranks: int

    @property
    def cpus(self) -> frozenset[int]:
        return frozenset[int]().union(*(node.cpus for node in self.nodes))


def parts_for(nodes: Sequence[NumaNode], num_ranks: int, threads_each: int) -> tuple[Part, ...]:
    """Parts of a machine for ranks that have so many threads, each of as few nodes as hold them.

    2 nodes of 32 cores    2 ranks of 32 threads    one a node
                           3 of 21                  two on the first node, one on the second
                           1 of 64                  on both
    """
    each = -(-threads_each * len(nodes) // num_cores(nodes))
    num_parts = len(nodes) // min(max(1, each), len(nodes))
    bounds = [part * len(nodes) // num_parts for part in range(num_parts + 1)]
    return tuple(
        Part(tuple(nodes[first:last]), max(1, (num_ranks - part + num_parts - 1) // num_parts))
        for part, (first, last) in enumerate(pairwise(bounds))
    )
