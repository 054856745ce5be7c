"""Worker groups and their pods, read from the objects of Kubernetes.

RayService   the wanted state, which KubeRay copies when it rewrites the cluster's spec
RayCluster   the current state, by which KubeRay makes pods

A replica of a group is `numOfHosts` pods, which KubeRay creates and deletes together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from baton.core.replicas import Role
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.config.pools import PlacementConfig, PoolConfig

Manifest = dict[str, Any]

UNLIMITED = 2**31 - 1
"""KubeRay's `maxReplicas` where none is given."""
RAYS_OWN = "ray.io/"
"""Labels that Ray finds out by itself: groups do not say them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGroup:
    name: str
    replicas: int
    min_replicas: int = 0
    max_replicas: int = UNLIMITED
    num_hosts: int = 1
    is_suspended: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of its Ray nodes."""
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    """What Ray counts on one of its pods."""
    named: tuple[str, ...] = ()
    """Pods that KubeRay is to delete."""

    @property
    def desired(self) -> int:
        """What KubeRay makes of it."""
        return max(self.min_replicas, min(self.replicas, self.max_replicas))

    @property
    def num_pods(self) -> int:
        """Pods that the group is to have."""
        return 0 if self.is_suspended else self.desired * self.num_hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    name: str
    group: str
    replica: str = ""
    """Which of the group's replicas it belongs to, where each is several pods and KubeRay says
    (its gate RayMultiHostIndexing, on since 1.6)."""
    ip: str = ""
    """Empty before it has one."""
    node: str = ""
    is_leaving: bool = False
    trouble: str = ""
    """Why it is not up: by the scheduler's word, or its container's."""

    @property
    def is_up(self) -> bool:
        return bool(self.ip) and not self.trouble


@dataclass(frozen=True, slots=True)
class Hosts:
    """One replica of a group: a pod, or several that come and go together."""

    group: str
    pods: tuple[Pod, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(pod.name for pod in self.pods)


def hosts_of(group: WorkerGroup, pods: Sequence[Pod]) -> list[Hosts]:
    """The replicas of a group that are there as a whole. Of pods that are not said to belong
    together any do, in their order: KubeRay only counts them then."""
    by_replica: dict[str, list[Pod]] = {}
    loose: list[Pod] = []
    for pod in pods:
        if pod.replica and group.num_hosts > 1:
            by_replica.setdefault(pod.replica, []).append(pod)
        else:
            loose.append(pod)
    size = group.num_hosts
    whole = [own for own in by_replica.values() if len(own) == size]
    whole += [loose[i : i + size] for i in range(0, len(loose) - size + 1, size)]
    return [Hosts(group.name, tuple(own)) for own in whole]


def read_groups(cluster_spec: Mapping[str, Any]) -> dict[str, WorkerGroup]:
    """The worker groups of a RayCluster's spec by name, in their order."""
    found = (_read_group(spec) for spec in cluster_spec.get("workerGroupSpecs") or ())
    return {group.name: group for group in found}


def by_role(
    groups: Iterable[WorkerGroup], config: DeploymentConfig
) -> tuple[dict[Role, list[WorkerGroup]], list[str]]:
    """The groups that each pool's replicas may be on, and why some are left alone."""
    found: dict[Role, list[WorkerGroup]] = {role: [] for role in Role}
    notes: list[str] = []
    pools = {role: config.pool(role) for role in Role if config.pool(role).replicas}
    for group in groups:
        own = [role for role, pool in pools.items() if _is_for(pool.placement, group)]
        if len(own) > 1:
            notes.append(f"{group.name}: both pools may be on it; give them labels of their own")
        if len(own) != 1:
            continue
        if group.is_suspended:
            notes.append(f"{group.name}: it is suspended")
        elif not places_of(pools[own[0]], group):
            notes.append(f"{group.name}: its pods are too small for a {own[0].value} replica")
        else:
            found[own[0]].append(group)
    return found, notes


def places_of(pool: PoolConfig, group: WorkerGroup) -> int:
    """Replicas of the pool that each of the group's holds."""
    return pool.places_on(group.num_cpus, group.num_gpus, num_nodes=group.num_hosts)


def _is_for(placement: PlacementConfig, group: WorkerGroup) -> bool:
    labels = placement.labels
    told = {key: wanted for key, wanted in labels.items() if not key.startswith(RAYS_OWN)}
    return structs.replace(placement, labels=told).admits(group.labels)


def _read_group(spec: Mapping[str, Any]) -> WorkerGroup:
    most = spec.get("maxReplicas")
    cpus, gpus = _resources(spec)
    return WorkerGroup(
        name=spec["groupName"],
        replicas=spec.get("replicas") or 0,
        min_replicas=spec.get("minReplicas") or 0,
        max_replicas=UNLIMITED if most is None else most,
        num_hosts=max(spec.get("numOfHosts") or 1, 1),
        is_suspended=bool(spec.get("suspend")),
        labels=spec.get("labels") or {},
        num_cpus=cpus,
        num_gpus=gpus,
        named=tuple((spec.get("scaleStrategy") or {}).get("workersToDelete") or ()),
    )


def _resources(spec: Mapping[str, Any]) -> tuple[float, float]:
    """CPUs and GPUs of a pod, as KubeRay passes them to `ray start`: by the group's own settings,
    or by the container's limits."""
    containers: Sequence[Mapping[str, Any]] = spec["template"]["spec"]["containers"]
    of_container = containers[0].get("resources") or {}
    limits = of_container.get("limits") or {}
    cpu = limits.get("cpu", (of_container.get("requests") or {}).get("cpu", 0))
    gpus = sum(float(number) for name, number in limits.items() if name.endswith("gpu"))
    params, own = spec.get("rayStartParams") or {}, spec.get("resources") or {}
    return (
        float(own.get("CPU", params.get("num-cpus", _whole_cpus(cpu)))),
        float(own.get("GPU", params.get("num-gpus", gpus))),
    )


def _whole_cpus(quantity: str | int | float) -> int:
    text = str(quantity)
    return math.ceil(float(text[:-1]) / 1000 if text.endswith("m") else float(text))
