"""A RayService of Baton as KubeRay, Ray and Serve keep it, each a step at a time.

`operate` does what KubeRay 1.7 does with a RayCluster's groups (raycluster_controller.go): it
deletes those that are named, and then, without an autoscaler, any that are too many. Replicas of
several pods it deletes as a whole, where its gate RayMultiHostIndexing is on: those with a named
pod, those that miss one, and those that are too many.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml
from tests.platform.worker_groups.fake_kube import FakeKube, Manifest, Refused

from baton.core.errors import Unavailable
from baton.platform.cluster.applications.serve_document import application, document
from baton.platform.config.deployment import DeploymentConfig, parse_config
from baton.platform.worker_groups.groups import Pod
from baton.platform.worker_groups.kube_api import AWAY, KubeTrouble
from baton.platform.worker_groups.ray_cluster import Running

OF_REPLICA = "ray.io/worker-group-replica-name"
SERVICE, CLUSTER, NAMESPACE = "baton", "baton-x7k2p", "llm"
Counts = Mapping[str, int]
T = TypeVar("T")


def config_of(
    counts: Counts, asked: Counts | None = None, *, engines: int = 1, **planner: Any
) -> DeploymentConfig:
    """`counts`: replicas by pool. `engines`: of each decode replica."""
    rules = {"nodes": "kuberay", "enabled": True, "hold_s": 600.0} | planner
    rules |= {f"asked_{role}": number for role, number in (asked or {}).items()}
    pools = {
        role: {
            "replicas": counts.get(role, 1),
            "resources": {"num_gpus": 1},
            "placement": {"labels": {"baton-role": role}},
        }
        for role in ("prefill", "decode")
    }
    if engines > 1:
        pools["decode"]["parallel"] = {"data": engines, "expert": engines}
    gateway = {"placement": {"labels": {"baton-role": "gateway"}}}
    return parse_config({"planner": rules, "gateway": gateway, **pools})


def group(name: str, role: str, replicas: int, **changes: Any) -> Manifest:
    limits = {"cpu": "8", "nvidia.com/gpu": changes.pop("gpus", "1")}
    container = {"name": "ray-worker", "image": "baton:1", "resources": {"limits": limits}}
    return {
        "groupName": name,
        "replicas": replicas,
        "minReplicas": 1,
        "maxReplicas": 6,
        "labels": {"baton-role": role},
        "template": {"spec": {"containers": [container]}},
    } | changes


def named(spec: Manifest) -> list[str]:
    found: list[str] = (spec.get("scaleStrategy") or {}).get("workersToDelete") or []
    return found


@dataclass
class SimulatedCluster:
    groups: list[Manifest]
    config: DeploymentConfig
    kube: FakeKube = field(default_factory=FakeKube)
    is_autoscaled: bool = False
    is_indexing: bool = True
    """KubeRay's gate RayMultiHostIndexing."""
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    is_ray_away: bool = False
    placed: dict[str, list[str]] = field(default_factory=dict)
    """Engines on each pod: of which pool, and of which of its replicas where those have several."""
    killed: list[str] = field(default_factory=list)
    """Pods with replicas on them that were named, or that KubeRay chose. What Serve places on one
    that is named already leaves drained, before the pod stops (`baton k8s leave`)."""
    num_pods: int = 0
    num_replicas: int = 0
    """Of several pods, or of several engines, that ever began."""

    def __post_init__(self) -> None:
        cluster = {"enableInTreeAutoscaling": self.is_autoscaled, "workerGroupSpecs": self.groups}
        text = yaml.safe_dump(document(self.config))
        self.kube.put(
            "rayservices",
            {
                "metadata": {"name": SERVICE},
                "spec": {"serveConfigV2": text, "rayClusterConfig": cluster},
                "status": {"activeServiceStatus": {"rayClusterName": CLUSTER}},
            },
        )
        labels = {"ray.io/originated-from-cr-name": SERVICE}
        self.kube.put(
            "rayclusters", {"metadata": {"name": CLUSTER, "labels": labels}, "spec": cluster}
        )
        self.deployed = application(self.config)
        self.kube.before_done = self._see_named
        self.operate()
        self.serve()

    @property
    def service_counts(self) -> Counts:
        spec = self.kube.get("rayservices", SERVICE)["spec"]["rayClusterConfig"]
        return {one["groupName"]: one["replicas"] for one in spec["workerGroupSpecs"]}

    @property
    def cluster_counts(self) -> Counts:
        return {one["groupName"]: one["replicas"] for one in self.specs()}

    def specs(self) -> list[Manifest]:
        found: list[Manifest] = self.kube.get("rayclusters", CLUSTER)["spec"]["workerGroupSpecs"]
        return found

    def pods(self, of: str | None = None) -> list[str]:
        names = [one["metadata"]["name"] for one in self.kube.listed("pods")]
        return [name for name in names if of is None or name.startswith(f"{of}-")]

    def write(self, plural: str, of: str, **changes: Any) -> None:
        """As a person edits a group."""
        name = SERVICE if plural == "rayservices" else CLUSTER
        manifest = self.kube.get(plural, name)
        spec = manifest["spec"]
        for one in spec.get("rayClusterConfig", spec)["workerGroupSpecs"]:
            if one["groupName"] == of:
                one.update(changes)
        self.kube.put(plural, manifest)

    def want(self, counts: Counts, asked: Counts | None = None) -> None:
        """As the planner tells Serve."""
        self.config = config_of(counts, asked, engines=self.config.decode.parallel.data)
        self.deployed = application(self.config)

    def operate(self) -> None:
        """KubeRay's turn: pods that go leave at once."""
        for spec in self.specs():
            size = int(spec.get("numOfHosts", 1))
            wanted = max(spec["minReplicas"], min(spec["replicas"], spec["maxReplicas"]))
            if size > 1 and self.is_indexing:
                self._operate_whole(spec, size, wanted)
            else:
                self._operate_pods(spec, wanted * size)

    def _operate_pods(self, spec: Manifest, wanted: int) -> None:
        there = self.pods(spec["groupName"])
        for name in named(spec):
            if name in there:
                there.remove(name)
                self.placed.pop(name, None)
                self._end(name)
        for _ in range(wanted - len(there)):
            self._begin(spec["groupName"])
        if not self.is_autoscaled:
            for name in self.chance.sample(there, max(len(there) - wanted, 0)):
                self._end(name)

    def _operate_whole(self, spec: Manifest, size: int, wanted: int) -> None:
        of = spec["groupName"]
        whole = self._by_replica(of)
        for replica, own in list(whole.items()):
            is_named = not set(own).isdisjoint(named(spec))
            if is_named or len(own) < size:
                del whole[replica]
                for name in own:
                    if name in named(spec):
                        self.placed.pop(name, None)
                    self._end(name)
        for _ in range(wanted - len(whole)):
            self.num_replicas += 1
            for _ in range(size):
                self._begin(of, f"{of}-r{self.num_replicas}")
        if not self.is_autoscaled:
            for replica in self.chance.sample(list(whole), max(len(whole) - wanted, 0)):
                for name in whole[replica]:
                    self._end(name)

    def _by_replica(self, of: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self.pods(of):
            labels = self.kube.get("pods", name)["metadata"]["labels"]
            found.setdefault(labels[OF_REPLICA], []).append(name)
        return found

    def serve(self) -> None:
        """Serve's turn: replicas that are too many leave, drained; missing ones find a place."""
        for spec in self.specs():
            of, role = spec["groupName"], spec["labels"]["baton-role"]
            if role == "gateway":
                continue
            room = int(
                spec["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
            )
            pool = getattr(self.config, role)
            own = [one for name in self.pods() for one in self.placed.get(name, [])]
            own = [one for one in own if one.partition("#")[0] == role]
            if pool.parallel.data > 1:
                own = list(dict.fromkeys(own))  # of a replica that lost one engine, none serves
            for one in self.chance.sample(own, max(len(own) - pool.replicas, 0)):
                for name in [name for name in self.placed if one in self.placed[name]]:
                    self.placed[name].remove(one)
                    if pool.parallel.data == 1:
                        break
            missing = pool.replicas - len(own)
            free = [
                name
                for name in self.pods(of)
                for _ in range(room - len(self.placed.setdefault(name, [])))
            ]
            while missing > 0 and len(free) >= pool.parallel.data:
                self.num_replicas += 1
                one = role if pool.parallel.data == 1 else f"{role}#{self.num_replicas}"
                for name in free[: pool.parallel.data]:
                    self.placed[name].append(one)
                free, missing = free[pool.parallel.data :], missing - 1

    def _see_named(self, patch: list[Manifest]) -> None:
        for one in patch:
            if one["path"].endswith("/scaleStrategy"):
                still = {name for spec in self.specs() for name in named(spec)}
                news = set(one["value"]["workersToDelete"]) - still
                self.killed += [name for name in news if self.placed.get(name)]

    def _begin(self, of: str, replica: str = "") -> None:
        self.num_pods += 1
        name = f"{of}-{self.num_pods}"
        labels = {"ray.io/cluster": CLUSTER, "ray.io/group": of, "ray.io/node-type": "worker"}
        if replica:
            labels[OF_REPLICA] = replica
        self.kube.put(
            "pods",
            {
                "metadata": {"name": name, "labels": labels},
                "spec": {"nodeName": f"node-{self.num_pods}", "containers": []},
                "status": {"podIP": f"10.0.0.{self.num_pods}", "phase": "Running"},
            },
        )

    def _end(self, name: str) -> None:
        if self.placed.pop(name, []):
            self.killed.append(name)
        self.kube.remove("pods", name)

    # As the adapter's RayCluster.

    def look(self) -> Running | None:
        if self.is_ray_away:
            raise Unavailable("Ray's dashboard does not answer")
        ips = {name: self.kube.get("pods", name)["status"]["podIP"] for name in self.pods()}
        busy = frozenset(ips[name] for name, own in self.placed.items() if own)
        return Running(self.deployed, self.config, busy, frozenset())


@dataclass
class DirectKube:
    """The adapter's Kube without HTTP."""

    kube: FakeKube

    def service(self) -> Manifest:
        return self._asked("GET rayservices", lambda: self.kube.get("rayservices", SERVICE))

    def cluster(self, name: str) -> Manifest:
        return self._asked("GET rayclusters", lambda: self.kube.get("rayclusters", name))

    def pods(self, cluster: str) -> list[Pod]:
        listed = self._asked("GET pods", lambda: self.kube.listed("pods"))
        return [
            Pod(
                name=one["metadata"]["name"],
                group=one["metadata"]["labels"]["ray.io/group"],
                replica=one["metadata"]["labels"].get(OF_REPLICA, ""),
                ip=one["status"]["podIP"],
                node=one["spec"]["nodeName"],
                is_leaving="deletionTimestamp" in one["metadata"],
            )
            for one in listed
        ]

    def node_labels(self, name: str) -> Mapping[str, str]:
        node = self._asked("GET nodes", lambda: self.kube.get("nodes", name))
        labels: dict[str, str] = node["metadata"]["labels"]
        return labels

    def patch_service(self, patch: list[Manifest]) -> Manifest:
        kube = self.kube
        return self._asked("PATCH rayservices", lambda: kube.patch("rayservices", SERVICE, patch))

    def patch_cluster(self, name: str, patch: list[Manifest]) -> Manifest:
        kube = self.kube
        return self._asked("PATCH rayclusters", lambda: kube.patch("rayclusters", name, patch))

    def _asked(self, request: str, do: Callable[[], T]) -> T:
        fault = self.kube.fault(request)
        try:
            if fault is not None and not fault.is_done:
                raise Refused(fault.status)
            told = do()
            if fault is not None:
                raise Refused(fault.status)
            return told
        except Refused as error:
            raise KubeTrouble(error.status or AWAY, f"{request}: {error}") from error
