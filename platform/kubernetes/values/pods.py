"""Values of the head and of the worker groups."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from baton.core.config_node import Count, NonNegative
from baton.platform.kubernetes.values.node import ChartNode, Free


class DeviceValues(ChartNode, frozen=True, kw_only=True):
    """Devices of one pod, as a device plugin calls them."""

    resource: str = ""
    """Name of the extended resource, `nvidia.com/gpu` say. Empty: none."""
    count: NonNegative = 0
    """How many each pod gets."""


class ProbeValues(ChartNode, frozen=True, kw_only=True):
    """Whole probes in the place of the chart's own."""

    startup: Free = msgspec.field(default_factory=dict)
    """Empty: Ray's node answers on its agent's port, within `startupSeconds`."""
    liveness: Free = msgspec.field(default_factory=dict)
    """Empty: Ray's node answers on its agent's port."""
    readiness: Free = msgspec.field(default_factory=dict)
    """Empty: a gateway takes requests (`/ready`), or a pod's first replica does (`/readyz`), or the
    head answers."""


class PodValues(ChartNode, frozen=True, kw_only=True):
    """What the pods of the head and of worker groups have in common."""

    image: str = ""
    """Another image than the chart's, as a full reference."""
    resources: Free = msgspec.field(default_factory=dict)
    """Requests and limits of the Ray container, without devices. Ray counts the limit's CPUs."""
    accelerator: DeviceValues = DeviceValues()
    rdma: DeviceValues = DeviceValues()
    """RDMA devices. They want locked memory, so the container gets IPC_LOCK: a namespace with the
    restricted pod security refuses it."""
    resource_claims: list[Free] = msgspec.field(default_factory=list)
    """Claims of dynamic resource allocation; the container gets all of them. Say how many GPUs they
    are in `rayStartParams`: `num-gpus`."""
    host_network: bool = False
    """Use the node's network, for RDMA without a device plugin. One such pod fits a node, and
    network policies do not know it as a pod: see `networkPolicy.hostNetworkCidrs`."""
    home_size: str = "5Gi"
    """Limit of the home folder, where fetched models lie without `model.claim` or
    `model.hostPath`."""
    shared_memory: str = ""
    """Size of /dev/shm. Empty: Ray's object store, and 1 GiB for each accelerator."""
    scratch_size: str = "20Gi"
    """Limit of /tmp, where Ray writes its session and logs."""
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: Free = msgspec.field(default_factory=dict)
    tolerations: list[Free] = msgspec.field(default_factory=list)
    topology_spread_constraints: list[Free] = msgspec.field(default_factory=list)
    """Constraints without a `labelSelector` count the pods of their own group."""
    priority_class_name: str = ""
    scheduler_name: str = ""
    runtime_class_name: str = ""
    pod_labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels of the pods. A change is a new cluster."""
    pod_annotations: dict[str, str] = msgspec.field(default_factory=dict)
    env: list[Free] = msgspec.field(default_factory=list)
    env_from: list[Free] = msgspec.field(default_factory=list)
    extra_volumes: list[Free] = msgspec.field(default_factory=list)
    extra_volume_mounts: list[Free] = msgspec.field(default_factory=list)
    init_containers: list[Free] = msgspec.field(default_factory=list)
    sidecars: list[Free] = msgspec.field(default_factory=list)
    ray_start_params: dict[str, str] = msgspec.field(default_factory=dict)
    """Options of `ray start`, beside the chart's own, but for labels and resources."""
    ray_resources: dict[str, str] = msgspec.field(default_factory=dict)
    """Custom resources of the Ray node."""
    termination_grace_period_seconds: Annotated[int, msgspec.Meta(ge=30)] = 120
    """How long a pod may take to end. A worker first leaves the cluster, in 15 s less: replacements
    come up, and requests move to them. The head has as long as the slowest group, and goes last."""
    startup_seconds: Count = 300
    """How long Ray may take to start in a new pod."""
    probes: ProbeValues = ProbeValues()


class HeadValues(PodValues, frozen=True, kw_only=True):
    """The pod of Ray's head: control store, dashboard, Serve's controller, and no replica."""

    resources: Free = msgspec.field(
        default_factory=lambda: {
            "requests": {"cpu": "1", "memory": "4Gi"},
            "limits": {"cpu": "2", "memory": "4Gi"},
        }
    )
    service_type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"


class WorkerValues(PodValues, frozen=True, kw_only=True):
    """What all worker groups are, unless they say otherwise."""

    resources: Free = msgspec.field(
        default_factory=lambda: {
            "requests": {"cpu": "1", "memory": "4Gi"},
            "limits": {"cpu": "2", "memory": "4Gi"},
        }
    )
    replicas: NonNegative = 1
    """Pods, or groups of `numOfHosts` pods."""
    min_replicas: NonNegative | None = None
    """Least pods with the autoscaler or `config.planner.nodes`. Empty: `replicas`."""
    max_replicas: NonNegative | None = None
    """Most pods with the autoscaler or `config.planner.nodes`. Empty: `replicas`."""
    num_of_hosts: Count = 1
    """Pods that come and go together, for replicas whose ranks are on several nodes."""
    processes: Annotated[int, msgspec.Meta(ge=1, le=16)] | None = None
    """Replicas that a pod can hold, each with a port for Prometheus. Empty: as many as its
    accelerators are enough for, or one."""
    idle_timeout_seconds: NonNegative = 0
    """Seconds after which the autoscaler takes an idle pod away. 0: as `autoscaler` says."""
    priority: int = 0
    """Groups of a higher one are scaled up first (autoscaler v2)."""
    ray_labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels of the Ray nodes, beside `baton-role`."""


class WorkerGroupValues(WorkerValues, frozen=True, kw_only=True):
    """Pods of one kind; what is not said here is as in `workerDefaults`."""

    name: str
    """Unique; also the label `ray.io/group` of the pods."""
    role: Literal["gateway", "prefill", "decode"]
    """What runs there: the node has the label `baton-role`, which `config.*.placement.labels` ask
    for."""
