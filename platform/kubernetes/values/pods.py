"""Values of the head and of the worker groups."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from baton.core.config_node import Count, NonNegative
from baton.platform.kubernetes.values.node import ChartNode, Free


class DeviceValues(ChartNode, frozen=True, kw_only=True):
    """Extended resources of one pod, from a device plugin."""

    resource: str = ""
    """Name of the extended resource, such as `nvidia.com/gpu`. Empty: none."""
    count: NonNegative = 0
    """The number that each pod gets."""


class ProbeValues(ChartNode, frozen=True, kw_only=True):
    """Complete probes that replace the chart's own."""

    startup: Free = msgspec.field(default_factory=dict)
    """Empty: Ray's node answers on its agent's port, within `startupSeconds`."""
    liveness: Free = msgspec.field(default_factory=dict)
    """Empty: Ray's node answers on its agent's port."""
    readiness: Free = msgspec.field(default_factory=dict)
    """Empty: a gateway accepts requests (`/ready`), a pod's first replica does (`/readyz`), or the
    head answers."""


class PodValues(ChartNode, frozen=True, kw_only=True):
    """Settings that pods of the head and of worker groups share."""

    image: str = ""
    """A full image reference that replaces the chart's image."""
    resources: Free = msgspec.field(default_factory=dict)
    """Requests and limits of the Ray container, without devices. Ray counts the limit's CPUs."""
    accelerator: DeviceValues = DeviceValues()
    rdma: DeviceValues = DeviceValues()
    """RDMA devices. They need locked memory, so the container gets IPC_LOCK, which the restricted
    pod security standard refuses."""
    resource_claims: list[Free] = msgspec.field(default_factory=list)
    """Claims of dynamic resource allocation, all for the Ray container. Set their number of GPUs in
    `rayStartParams`: `num-gpus`."""
    host_network: bool = False
    """Use the node's network, for RDMA without a device plugin. Only one such pod fits on a node,
    and network policies do not apply to it as a pod: see `networkPolicy.hostNetworkCidrs`."""
    home_size: str = "5Gi"
    """Limit of the home folder, which holds fetched models unless `model.claim` or `model.hostPath`
    is set."""
    shared_memory: str = ""
    """Size of /dev/shm. Empty: Ray's object store plus 1 GiB per accelerator."""
    scratch_size: str = "20Gi"
    """Limit of /tmp, which holds Ray's session and logs."""
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: Free = msgspec.field(default_factory=dict)
    tolerations: list[Free] = msgspec.field(default_factory=list)
    topology_spread_constraints: list[Free] = msgspec.field(default_factory=list)
    """Constraints without a `labelSelector` count the pods of their own group."""
    priority_class_name: str = ""
    scheduler_name: str = ""
    runtime_class_name: str = ""
    pod_labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels of the pods. A change needs a new cluster."""
    pod_annotations: dict[str, str] = msgspec.field(default_factory=dict)
    env: list[Free] = msgspec.field(default_factory=list)
    env_from: list[Free] = msgspec.field(default_factory=list)
    extra_volumes: list[Free] = msgspec.field(default_factory=list)
    extra_volume_mounts: list[Free] = msgspec.field(default_factory=list)
    init_containers: list[Free] = msgspec.field(default_factory=list)
    sidecars: list[Free] = msgspec.field(default_factory=list)
    ray_start_params: dict[str, str] = msgspec.field(default_factory=dict)
    """Further options of `ray start`, except labels and resources."""
    ray_resources: dict[str, str] = msgspec.field(default_factory=dict)
    """Custom resources of the Ray node."""
    termination_grace_period_seconds: Annotated[int, msgspec.Meta(ge=30)] = 120
    """Seconds that a pod may take to end. A worker first leaves the cluster, in 15 s less:
    replacements start, and requests move to them. The head has as long as the slowest group, and
    ends last."""
    startup_seconds: Count = 300
    """Seconds that Ray may take to start in a new pod."""
    probes: ProbeValues = ProbeValues()


class HeadValues(PodValues, frozen=True, kw_only=True):
    """The pod of Ray's head: control store, dashboard and Serve's controller, without replicas."""

    resources: Free = msgspec.field(
        default_factory=lambda: {
            "requests": {"cpu": "1", "memory": "4Gi"},
            "limits": {"cpu": "2", "memory": "4Gi"},
        }
    )
    service_type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"


class WorkerValues(PodValues, frozen=True, kw_only=True):
    """Defaults of all worker groups."""

    resources: Free = msgspec.field(
        default_factory=lambda: {
            "requests": {"cpu": "1", "memory": "4Gi"},
            "limits": {"cpu": "2", "memory": "4Gi"},
        }
    )
    replicas: NonNegative = 1
    """Pods, or groups of `numOfHosts` pods."""
    min_replicas: NonNegative | None = None
    """The fewest replicas of the group, with the autoscaler or `config.planner.nodes`. Empty:
    `replicas`."""
    max_replicas: NonNegative | None = None
    """The most replicas of the group, with the autoscaler or `config.planner.nodes`. Empty:
    `replicas`."""
    num_of_hosts: Count = 1
    """Pods that are added and removed together, for replicas whose ranks are on several nodes."""
    processes: Annotated[int, msgspec.Meta(ge=1, le=16)] | None = None
    """Replicas that a pod can hold, each with a metrics port. Empty: as many as its accelerators
    allow, or one."""
    idle_timeout_seconds: NonNegative = 0
    """Seconds after which the autoscaler removes an idle pod. 0: the setting of `autoscaler`."""
    priority: int = 0
    """Groups with a higher priority are scaled up first (autoscaler v2)."""
    ray_labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Further labels of the Ray nodes, besides `baton-role`."""


class WorkerGroupValues(WorkerValues, frozen=True, kw_only=True):
    """A group of pods of one kind; `workerDefaults` has the defaults."""

    name: str
    """Unique; also the label `ray.io/group` of the pods."""
    role: Literal["gateway", "prefill", "decode"]
    """The role of its replicas: the Ray node gets the label `baton-role`, which
    `config.*.placement.labels` select."""
