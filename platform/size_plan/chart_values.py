"""The chosen pools as Helm values: worker groups with the resources of their replicas.

    a replica of up to a machine's devices    a pod
    one whose engines share experts           `numOfHosts` pods, each with whole engines

Values that cannot be computed (process memory, CPUs per device) are assumptions, listed here.
"""

from __future__ import annotations

import math
from typing import Any

from baton.engine.mesh.mesh import Mesh
from baton.platform.kubernetes.values.tree import check_values
from baton.platform.size_plan.deployment import deployment_of
from baton.platform.size_plan.memory import GIB
from baton.platform.size_plan.pass_time import BITS
from baton.platform.size_plan.pools import MACHINE, Pool
from baton.platform.size_plan.question import Question
from baton.platform.size_plan.size import Option

MIB_OF_STORE = 256
"""MiB of /dev/shm for Ray's object store, which the chart keeps at 80 MB, and some."""
MIB_OF_TALK = 1024
"""MiB of /dev/shm for a rank that talks with others of its pod by NCCL: more than its buffers of 4
MiB a channel take. KV goes through none of it."""
GIB_OF_NODE = 3
"""GiB of a pod's memory for Ray's processes."""
GIB_OF_RANK = 8
"""GiB of host memory for a rank that computes on a device: Python, torch, the driver, and pages
under way."""
CPUS_OF_RANK = 4
"""CPUs per rank, in addition to a device."""
GIB_OF_HOME = 5
"""The chart's own limit of a home without a model."""
WIDE = 16
"""Bits of a weight in files that are not quantised."""
ROOM = 1.2
"""Downloads are larger than the stored weights by this factor."""


def chart_values_of(question: Question, option: Option) -> dict[str, Any]:
    """Checked. Raises InvalidConfig if it could not be served."""
    config = deployment_of(question, option)
    groups: list[dict[str, Any]] = [
        {"name": "gateway", "role": "gateway", "replicas": question.config.gateway.replicas}
    ]
    for role, pool in (("prefill", option.prefill), ("decode", option.decode)):
        if pool is not None:
            groups.append({"name": role, "role": role, **_group(question, pool)})
    values: dict[str, Any] = {"config": config, "workerGroups": groups}
    check_values(values)
    return values


def _group(question: Question, pool: Pool) -> dict[str, Any]:
    """Pods as large as a replica, or as many of its engines as a machine has devices for."""
    mesh = pool.layout.mesh
    in_engine = mesh.size // mesh.data
    most = max(MACHINE // in_engine, 1)
    hosts = math.ceil(mesh.data / most)
    while mesh.data % hosts:  # all pods of a group are alike
        hosts += 1
    num_ranks = in_engine * mesh.data // hosts
    group: dict[str, Any] = {
        "replicas": pool.num_units,
        "resources": _of_pod(question, pool, num_ranks),
        "sharedMemory": f"{_shared_mib(mesh, num_ranks)}Mi",
    }
    if hosts > 1:
        group["numOfHosts"] = hosts
    if not question.accelerator.is_cpu:
        group["accelerator"] = {"resource": _device(question), "count": num_ranks}
    if _is_downloaded(question):
        group["homeSize"] = f"{_home_gib(question, pool)}Gi"
    return group


def _of_pod(question: Question, pool: Pool, num_ranks: int) -> dict[str, Any]:
    config, budget = question.config, pool.layout.budget
    asked = (config.prefill if pool.is_prefill else config.decode).resources.num_cpus
    if question.accelerator.is_cpu:
        cpus = math.ceil(num_ranks * asked)
        of_rank = (budget.weight_bytes + budget.pass_bytes + budget.kv_bytes) / GIB + 1
    else:
        cpus = math.ceil(num_ranks * max(asked, CPUS_OF_RANK))
        of_rank = GIB_OF_RANK
    tier = config.tiers.host.gib * max(
        num_ranks * pool.layout.mesh.data // pool.layout.mesh.size, 1
    )
    shared = _shared_mib(pool.layout.mesh, num_ranks) / 1024
    memory = f"{math.ceil(GIB_OF_NODE + num_ranks * of_rank + tier + shared)}Gi"
    asked_for = {"cpu": str(cpus), "memory": memory}
    return {"requests": asked_for, "limits": asked_for}


def _shared_mib(mesh: Mesh, num_ranks: int) -> int:
    """MiB of /dev/shm of a pod with so many ranks, which is of its memory, too."""
    return MIB_OF_STORE + (MIB_OF_TALK * num_ranks if mesh.size > 1 else 0)


def _device(question: Question) -> str:
    return "amd.com/gpu" if "amd.com" in question.accelerator.source else "nvidia.com/gpu"


def _is_downloaded(question: Question) -> bool:
    model = question.config.model
    return model != "demo" and not model.startswith("/")


def _home_gib(question: Question, pool: Pool) -> int:
    """GiB of home for a model that each pod downloads, as wide as its files are."""
    bits = question.stored_bits or WIDE
    wide = pool.layout.budget.weight_bytes * max(bits / BITS[question.precision], 1)
    return GIB_OF_HOME + math.ceil(ROOM * wide * pool.layout.mesh.size / GIB)
