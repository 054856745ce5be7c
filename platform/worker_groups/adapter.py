"""Sizes the worker groups of one RayService by its pools' numbers of replicas.

    look    RayService, RayCluster, pods, and last what runs on Ray: a `Snapshot`
    decide  resizing.py
    patch   more pods: the RayService, then the RayCluster, that the one is never below the other
            fewer: the RayCluster, each victim named; the RayService once they have left
            numbers in the RayService's document: those that Serve has, once they are steady

A reconciliation has no state and makes at most one change to each object, which fails if the object
has changed since it was read. So it can be killed at any step, run twice, or run late: the next one
does the rest. If anything cannot be read, nothing is changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import yaml

from baton.core.clock import Clock, monotonic
from baton.core.errors import InvalidConfig, Unavailable
from baton.core.metrics import Family
from baton.core.replicas import Role
from baton.platform.cluster.applications.serve_document import with_numbers_of
from baton.platform.config.live import Plain
from baton.platform.worker_groups.account import Account, Cause, Reason
from baton.platform.worker_groups.follow_metrics import FollowMetrics, GroupSeen
from baton.platform.worker_groups.groups import (
    Hosts,
    Manifest,
    Pod,
    WorkerGroup,
    by_role,
    hosts_of,
    places_of,
    read_groups,
)
from baton.platform.worker_groups.kube_api import OVERTAKEN, KubeTrouble
from baton.platform.worker_groups.memory import Memory
from baton.platform.worker_groups.patches import (
    CLUSTER,
    SERVE,
    Patch,
    cluster_patch,
    floor_patch,
    service_patch,
)
from baton.platform.worker_groups.ray_cluster import RayCluster, Running
from baton.platform.worker_groups.resizing import Resize, Verdict, best_first, floors, resize
from baton.platform.worker_groups.snapshot import Snapshot, active_cluster, missing_pods

log = logging.getLogger(__name__)

PERIOD_S = 5.0
LONGEST_S = 60.0
"""Most seconds between two looks, while looks fail."""
REFUSED = (400, 401, 403, 404, 413, 415)
"""HTTP statuses of a refusal by Kubernetes, which a retry does not change."""


class Kube(Protocol):
    """Each raises KubeTrouble."""

    def service(self) -> Manifest: ...
    def cluster(self, name: str) -> Manifest: ...
    def pods(self, cluster: str) -> list[Pod]: ...
    def node_labels(self, name: str) -> Mapping[str, str]: ...
    def patch_service(self, patch: Patch) -> Manifest: ...
    def patch_cluster(self, name: str, patch: Patch) -> Manifest: ...


@dataclass(slots=True)
class Adapter:
    """Single-threaded."""

    kube: Kube
    ray: RayCluster
    topology_keys: Sequence[str] = ()
    """Labels of nodes that say where they are, the widest first."""
    clock: Clock = monotonic
    metrics: FollowMetrics = field(default_factory=FollowMetrics)
    account: Account = field(default_factory=Account)
    _memory: Memory = field(default_factory=Memory)
    _labels_by_node: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _failures: int = 0

    def follow(self) -> float:
        """One reconciliation. Returns seconds until the next."""
        try:
            reasons = self._reconcile()
            self._failures = 0
        except KubeTrouble as trouble:
            self.metrics.failed(trouble.status)
            if trouble.status in OVERTAKEN:
                self._waits("conflict", f"somebody was faster ({trouble}); looking again")
                return 0.0 if self._failed() == 1 else self._delay_s()
            self._waits("refused" if trouble.status in REFUSED else "api", str(trouble))
            self._failed()
        except (Unavailable, InvalidConfig) as trouble:
            self.metrics.failed(None)
            self._waits("ray", str(trouble))
            self._failed()
        else:
            self.account.waits_for(reasons)
            self.account.looked()
            self.metrics.looked()
        return self._delay_s()

    @property
    def notes(self) -> tuple[str, ...]:
        """Why groups do not have the wanted size."""
        return tuple(reason.text for reason in self.account.reasons)

    def families(self) -> Iterator[Family]:
        return self.metrics.families(self.account)

    def _waits(self, cause: Cause, text: str) -> None:
        self.account.waits_for((Reason(cause, text),))

    def _failed(self) -> int:
        self._failures += 1
        return self._failures

    def _delay_s(self) -> float:
        return min(PERIOD_S * 2.0 ** min(self._failures, 10), LONGEST_S)

    def _reconcile(self) -> Sequence[Reason]:
        service = self.kube.service()
        name, why_not = active_cluster(service)
        if why_not:
            return (Reason("upgrade", why_not),)
        cluster = self.kube.cluster(name)
        if cluster["metadata"].get("deletionTimestamp"):
            return (Reason("upgrade", f"the RayCluster {name} is on its way out"),)
        pods = self.kube.pods(name)
        running = self.ray.look()
        if running is None:
            text = "no application has planner.nodes: kuberay; groups stay as they are"
            return (Reason("unplanned", text),)
        now_s = self.clock()
        snapshot = Snapshot(service, cluster, pods, running)
        self._memory.see_pods(snapshot.staying(), running.busy_ips, now_s)
        hold_s = running.config.planner.hold_s
        if not snapshot.is_autoscaled:
            self._memory.see_counts(snapshot.groups, now_s, hold_s)
        return self._act(snapshot)

    def _act(self, snapshot: Snapshot) -> Sequence[Reason]:
        now_s = self.clock()
        roles, left_alone = by_role(snapshot.groups.values(), snapshot.running.config)
        reasons = [Reason("unfit", note) for note in left_alone]
        held = {name for name in snapshot.groups if self._memory.hold_left_s(name, now_s)}
        told = "somebody set its number, which stays for a while"
        reasons += [Reason("held", f"{name}: {told}") for name in held]
        reasons += missing_pods(snapshot)
        found: list[Resize] = []
        for role, groups in roles.items():
            wanted = _wanted(snapshot.running, role)
            verdict = self._verdict(snapshot, role, groups, wanted, held)
            found += verdict.resizes
            if verdict.lacking and held.isdisjoint(group.name for group in groups):
                text = (
                    f"{role.value}: {verdict.lacking} of {wanted} replicas find no pod, and no "
                    "group may grow; raise maxReplicas in the RayService and the RayCluster"
                )
                reasons.append(Reason("limit", text))
            for group in groups:
                self.metrics.saw(self._seen(snapshot, role, group))
        if snapshot.is_autoscaled:
            self._move_floors(snapshot, found)
            self._keep_document(snapshot)
            return reasons
        followed = {group.name for groups in roles.values() for group in groups} - held
        self._move_replicas(snapshot, found, followed)
        return reasons

    def _verdict(
        self, snapshot: Snapshot, role: Role, groups: list[WorkerGroup], wanted: int, held: set[str]
    ) -> Verdict:
        of_pool = partial(places_of, snapshot.running.config.pool(role))
        if snapshot.is_autoscaled:
            own = read_groups(snapshot.service["spec"][CLUSTER])
            least = {name: group.min_replicas for name, group in own.items()}
            return floors(groups, least, wanted, of_pool)
        free = [group for group in groups if group.name not in held]
        wanted -= sum(group.desired * of_pool(group) for group in groups if group.name in held)
        staying = snapshot.staying()
        pods = {group.name: [p for p in staying if p.group == group.name] for group in free}
        return resize(free, wanted, of_pool, pods, self._empty(snapshot, free, staying))

    def _empty(
        self, snapshot: Snapshot, groups: Sequence[WorkerGroup], staying: Sequence[Pod]
    ) -> list[Hosts]:
        """Removable replicas of groups, the best first; a replica only if all its pods are
        removable."""
        now_s, running = self.clock(), snapshot.running
        may_go = {pod.name for pod in staying if self._memory.may_go(pod, now_s)}
        empty: list[Hosts] = []
        for group in groups:
            own = [pod for pod in staying if pod.group == group.name]
            own.sort(key=lambda pod: (pod.name not in may_go, pod.ip in running.registry_ips))
            empty += [hosts for hosts in hosts_of(group, own) if may_go.issuperset(hosts.names)]
        if not empty:
            return []
        busy = [pod for pod in staying if pod.ip in running.busy_ips]
        ranked = best_first(empty, busy, self._domains_of)
        registry = running.registry_ips
        return sorted(ranked, key=lambda hosts: any(pod.ip in registry for pod in hosts.pods))

    def _domains_of(self, pod: Pod) -> Sequence[str]:
        if not (self.topology_keys and pod.node):
            return ()
        if pod.node not in self._labels_by_node:
            try:
                self._labels_by_node[pod.node] = self.kube.node_labels(pod.node)
            except KubeTrouble as trouble:
                if trouble.status not in (403, 404):
                    raise
                log.warning("where node %s is cannot be read: %s", pod.node, trouble)
                self._labels_by_node[pod.node] = {}
        labels = self._labels_by_node[pod.node]
        return [labels.get(key, "") for key in self.topology_keys]

    def _move_floors(self, snapshot: Snapshot, found: Sequence[Resize]) -> None:
        if not found:
            return
        name = snapshot.cluster["metadata"]["name"]
        self._patch_cluster(snapshot, name, floor_patch(snapshot.cluster, found))
        for one in found:
            self.account.did(f"{one.group}: minReplicas is {one.replicas} now")
            self.metrics.moved(one.group)

    def _move_replicas(
        self, snapshot: Snapshot, found: Sequence[Resize], followed: set[str]
    ) -> None:
        to_be = {name: snapshot.groups[name].desired for name in followed}
        to_be |= {one.group: one.replicas for one in found}
        there = {pod.name for pod in snapshot.pods}
        self._patch_service(snapshot, to_be, lambda now, then: now < then)
        if found:
            name = snapshot.cluster["metadata"]["name"]
            for one in found:
                self._memory.sets(one.group, one.replicas)
            self._patch_cluster(snapshot, name, cluster_patch(snapshot.cluster, found, there))
            for one in found:
                before = snapshot.groups[one.group].desired
                victims = f", without {', '.join(one.victims)}" if one.victims else ""
                hosts = snapshot.groups[one.group].num_hosts
                what = "pods" if hosts == 1 else f"replicas of {hosts} pods"
                self.account.did(f"{one.group}: {before} -> {one.replicas} {what}{victims}")
                self.metrics.moved(one.group)
        # While a named pod is there KubeRay counts it: a cluster that is written anew, without its
        # name, must not be one too small.
        left = {
            name: to_be[name] for name in to_be if there.isdisjoint(snapshot.groups[name].named)
        }
        left = {name: left[name] for name in left.keys() - {one.group for one in found}}
        self._patch_service(snapshot, left, lambda now, then: now > then)
        self._keep_document(snapshot)

    def _patch_service(
        self, snapshot: Snapshot, to_be: Mapping[str, int], differs: Callable[[int, int], bool]
    ) -> None:
        own = read_groups(snapshot.service["spec"][CLUSTER])
        numbers = {
            name: number
            for name, number in to_be.items()
            if name in own and differs(own[name].replicas, number)
        }
        if numbers:
            self._patch_service_by(snapshot, service_patch(snapshot.service, numbers))

    def _patch_service_by(self, snapshot: Snapshot, patch: Patch) -> None:
        with self._counted("RayService"):
            snapshot.service = self.kube.patch_service(patch)

    def _patch_cluster(self, snapshot: Snapshot, name: str, patch: Patch) -> None:
        with self._counted("RayCluster"):
            snapshot.cluster = self.kube.patch_cluster(name, patch)

    @contextmanager
    def _counted(self, kind: str) -> Iterator[None]:
        try:
            yield
        except KubeTrouble as trouble:
            self.metrics.patched(kind, _result(trouble.status))
            raise
        self.metrics.patched(kind, "ok")

    def _keep_document(self, snapshot: Snapshot) -> None:
        """KubeRay sends the RayService's document again when it has been restarted: the numbers in
        it must be those of now by then. One that differs in more is being deployed."""
        document, text = snapshot.running.document, snapshot.service["spec"].get(SERVE) or ""
        if not self._memory.is_steady(document) or self._memory.agree == (document, text):
            return
        told = yaml.safe_load(text) or {}
        # None, where it came by `baton deploy`: an empty list would have Serve delete it.
        applications = told.get("applications") or []
        kept = [_kept(one, document) for one in applications]
        if kept == applications:
            self._memory.agree = (document, text)
            return
        text = yaml.safe_dump({**told, "applications": kept}, sort_keys=False)
        self._patch_service_by(snapshot, service_patch(snapshot.service, {}, text))
        self.account.did("the RayService's document has the numbers of replicas that Serve has")

    def _seen(self, snapshot: Snapshot, role: Role, group: WorkerGroup) -> GroupSeen:
        staying = [pod for pod in snapshot.staying() if pod.group == group.name]
        return GroupSeen(
            group=group.name,
            role=role.value,
            wanted_places=_wanted(snapshot.running, role),
            places=group.desired * places_of(snapshot.running.config.pool(role), group),
            pods=group.num_pods,
            up=sum(pod.is_up for pod in staying),
            busy=sum(pod.ip in snapshot.running.busy_ips for pod in staying),
        )


def _result(status: int) -> str:
    if status in OVERTAKEN:
        return "conflict"
    return "refused" if status in REFUSED else "away"


def _wanted(running: Running, role: Role) -> int:
    """Replicas that there are to be, or nodes are asked for already."""
    number = running.config.pool(role).replicas
    return max(number, running.config.planner.asked(role)) if number else 0


def _kept(told: Plain, deployed: Plain) -> Plain:
    keys: tuple[str, ...] = ("name", "import_path", "args", "runtime_env")
    if any((told.get(key) or {}) != (deployed.get(key) or {}) for key in keys):
        return told
    found: dict[str, Any] = with_numbers_of(deployed, told)
    return found
