"""Machines to examine: a healthy one, and whatever a test wants to be different."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from baton.platform.doctor.finding import Finding
from baton.platform.doctor.node_checks import GIB
from baton.platform.machine.memory import MemoryFacts
from baton.platform.machine.node import GpuFacts, NodeFacts

VERSIONS = {"python": "3.11.7", "baton-llm": "0.1.0", "torch": "2.13.0+cu126", "ray": "2.60.0"}

NODE = NodeFacts(
    host="node-1",
    architecture="x86_64",
    versions=VERSIONS,
    torch_cuda="12.6",
    num_cores=8.0,
    cpu_flags=("avx2", "avx512f"),
    memory=MemoryFacts(total=64 * GIB, available=48 * GIB),
    shm_free=32 * GIB,
    has_huge_pages=True,
    max_files=65536,
)


def node(**changes: Any) -> NodeFacts:
    return replace(NODE, **changes)


def gpus(topology: str = "", **changes: Any) -> GpuFacts:
    facts = GpuFacts(names=("H100",) * 8, driver="550.54.15", topology=topology)
    return replace(facts, **changes)


def told(finding: Finding) -> tuple[str, str]:
    """What matters of a finding."""
    return finding.status.value, finding.seen
