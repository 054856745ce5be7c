"""A snapshot of a RayService, its RayCluster, their pods and Ray's state."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.platform.worker_groups.account import Cause, Reason
from baton.platform.worker_groups.groups import Manifest, Pod, WorkerGroup, read_groups
from baton.platform.worker_groups.ray_cluster import Running

BUSY_CONDITIONS = ("UpgradeInProgress", "RollbackInProgress", "Suspending", "Suspended")
CANNOT_MAKE, QUOTA = "ReplicaFailure", "exceeded quota"
"""A RayCluster's condition while KubeRay cannot make or delete a pod, and a word of Kubernetes."""


@dataclass(slots=True)
class Snapshot:
    """The read objects; manifests are replaced by patched versions."""

    service: Manifest
    cluster: Manifest
    pods: list[Pod]
    running: Running
    groups: dict[str, WorkerGroup] = field(init=False)

    def __post_init__(self) -> None:
        self.groups = read_groups(self.cluster["spec"])

    @property
    def is_autoscaled(self) -> bool:
        return bool(self.cluster["spec"].get("enableInTreeAutoscaling"))

    def staying(self) -> list[Pod]:
        """Pods that neither are terminating nor named for removal."""
        named = {name for group in self.groups.values() for name in group.named}
        return [pod for pod in self.pods if not pod.is_leaving and pod.name not in named]


def active_cluster(service: Manifest) -> tuple[str, str]:
    """The active RayCluster's name; or why there is nothing to do with it now."""
    status = service.get("status") or {}
    if service["metadata"].get("deletionTimestamp"):
        return "", "the RayService is on its way out"
    for condition in status.get("conditions") or ():
        if condition["type"] in BUSY_CONDITIONS and condition["status"] == "True":
            return "", f"the RayService has {condition['type']}: its clusters are KubeRay's"
    if (status.get("pendingServiceStatus") or {}).get("rayClusterName"):
        return "", "the RayService has another cluster coming up: both are KubeRay's"
    name = (status.get("activeServiceStatus") or {}).get("rayClusterName") or ""
    return name, "" if name else "the RayService serves from no cluster yet"


def missing_pods(snapshot: Snapshot) -> list[Reason]:
    """Why groups have fewer running pods than wanted."""
    reasons: list[Reason] = []
    for condition in (snapshot.cluster.get("status") or {}).get("conditions") or ():
        if condition["type"] == CANNOT_MAKE and condition["status"] == "True":
            told = condition.get("message") or condition.get("reason") or CANNOT_MAKE
            cause: Cause = "quota" if QUOTA in told else "pods"
            reasons.append(Reason(cause, f"KubeRay cannot make pods: {told}"))
    staying = snapshot.staying()
    for name, group in snapshot.groups.items():
        own = [pod for pod in staying if pod.group == name]
        num_up = sum(pod.is_up for pod in own)
        if num_up < group.num_pods:
            troubles = sorted({pod.trouble for pod in own if pod.trouble})
            why = f" ({'; '.join(troubles)})" if troubles else ""
            text = f"{name}: {group.num_pods - num_up} of {group.num_pods} pods are not up{why}"
            reasons.append(Reason("pods", text))
    return reasons
