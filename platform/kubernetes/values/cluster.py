"""Values of the RayService itself, and of what belongs to the cluster as a whole."""

from __future__ import annotations

from typing import Literal

import msgspec

from baton.core.config_node import Count, NonNegative
from baton.platform.kubernetes.values.node import ChartNode, Free, PlacedValues, SecretRef, Share


class ImageValues(ChartNode, frozen=True, kw_only=True):
    """The image of all pods."""

    registry: str = ""
    """Empty: `global.imageRegistry`, or none."""
    repository: str = "baton"
    tag: str = "0.1.0"
    """The tag does not follow the chart's version, since a new image replaces the cluster. Set your
    own."""
    digest: str = ""
    """`sha256:...`; overrides the tag."""
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"


class GlobalValues(ChartNode, frozen=True, kw_only=True):
    """Values that several charts share."""

    image_registry: str = ""


class SurgeValues(ChartNode, frozen=True, kw_only=True):
    """Settings of the upgrade strategy NewClusterWithIncrementalUpgrade."""

    gateway_class_name: str = ""
    max_surge_percent: Share = 100
    """Percent of its full size that the new cluster may have while the old one runs."""
    step_size_percent: Share = 10
    """Percent of the traffic moved in one step."""
    interval_seconds: Count = 30
    """Seconds between two such steps."""


class UpgradeValues(ChartNode, frozen=True, kw_only=True):
    """How a change that needs a new cluster is applied."""

    type: Literal["None", "NewCluster", "NewClusterWithIncrementalUpgrade"] = "None"
    """`None`: such a change is ignored until the RayService is recreated. `NewCluster`: a second
    cluster starts first, which needs as many GPUs again."""
    compare: bool = True
    """With `None`: refuse an upgrade whose `config` needs what the running pods lack (a volume, a
    port, a device). Helm reads the RayService and its RayCluster for this."""
    surge: SurgeValues = SurgeValues()


class RayServiceValues(ChartNode, frozen=True, kw_only=True):
    """The RayService's own settings."""

    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    initializing_timeout: str = "1h"
    """How long a new cluster may take until it serves; longer than the model takes to load."""
    deletion_delay_seconds: NonNegative = 60
    """Seconds that an old cluster stays after an upgrade."""
    suspend: bool = False


class AutoscalerValues(ChartNode, frozen=True, kw_only=True):
    """Ray's autoscaler, a sidecar of the head: it adds pods for replicas that do not fit."""

    enabled: bool = False
    version: Literal["v1", "v2"] = "v2"
    idle_timeout_seconds: Count = 300
    upscaling_mode: Literal["Default", "Aggressive", "Conservative"] = "Default"
    resources: Free = msgspec.field(
        default_factory=lambda: {
            "requests": {"cpu": "500m", "memory": "512Mi"},
            "limits": {"cpu": "500m", "memory": "512Mi"},
        }
    )


class FollowValues(PlacedValues, frozen=True, kw_only=True):
    """The adapter (`baton k8s follow`) that sizes worker groups by the numbers of replicas;
    `config.planner.nodes: kuberay` turns it on."""

    topology_keys: list[str] = msgspec.field(default_factory=list)
    """Node labels of topology domains, the widest first, such as `topology.kubernetes.io/zone`:
    pods that are alone in a domain are removed first. Gives it the right to read nodes."""
    resources: Free = msgspec.field(
        default_factory=lambda: {
            "requests": {"cpu": "50m", "memory": "384Mi"},
            "limits": {"cpu": "500m", "memory": "384Mi"},
        }
    )


class FaultToleranceValues(ChartNode, frozen=True, kw_only=True):
    """GCS fault tolerance: Ray's control store outlives its head, in a Redis of yours."""

    enabled: bool = False
    redis_address: str = ""
    """host:port"""
    redis_username: SecretRef = SecretRef()
    redis_password: SecretRef = SecretRef()
    reconnect_seconds: Count = 600
    """Seconds that workers continue to serve without the head."""


class RayAuthValues(ChartNode, frozen=True, kw_only=True):
    """Authentication of Ray: its dashboard, jobs and processes."""

    mode: Literal["disabled", "token"] = "token"
    """`token`: KubeRay makes a Secret that all pods get. Needs Ray 2.52 or newer."""
    secret_name: str = ""
    """A Secret of yours with the key `auth_token`. Empty: KubeRay's."""


class ServiceAccountValues(ChartNode, frozen=True, kw_only=True):
    """The service account of all pods, without rights; with the autoscaler, KubeRay gives the head
    another one."""

    create: bool = True
    name: str = ""
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class RbacValues(ChartNode, frozen=True, kw_only=True):
    """RBAC of the worker-group adapter, the only part of the chart that needs rights."""

    create: bool = True
    """False: bind the account `NAME-groups` yourself, to the Roles that `true` would make."""


class TestValues(ChartNode, frozen=True, kw_only=True):
    """Settings of `helm test`."""

    api_key: SecretRef = SecretRef()
    """An API key of the gateways, not its hash. Empty: where keys are required, no request is
    made."""


class ModelClaimValues(ChartNode, frozen=True, kw_only=True):
    """A volume from which all replicas read models."""

    existing_claim: str = ""
    create: bool = False
    size: str = "500Gi"
    storage_class_name: str = ""
    access_modes: list[str] = msgspec.field(default_factory=lambda: ["ReadWriteMany"])


class ModelStorageValues(ChartNode, frozen=True, kw_only=True):
    """Where models are stored, and downloads kept."""

    mount_path: str = "/models"
    """Mount path of the models. `config.model` is a folder in it, or an id or URL, which is fetched
    into it; so is each of `config.adapters`."""
    claim: ModelClaimValues = ModelClaimValues()
    host_path: str = ""
    """A folder of each node, in place of a claim; the restricted pod security standard refuses it.
    Use it with `readOnly`: a folder created by Kubernetes belongs to root, and pods run as user
    10001."""
    read_only: bool = False
    """Mount read-only; nothing is downloaded then."""
    object_store: SecretRef = SecretRef()
    """Credentials of an object store: every key of the Secret becomes an environment variable;
    `key` is not used."""
    hub_token: SecretRef = SecretRef()
    """HF_TOKEN, for gated models."""


class ClusterSecurityValues(ChartNode, frozen=True, kw_only=True):
    """Security between Baton's own processes; see docs/operating/access.md."""

    token: SecretRef = SecretRef()
    """BATON_CLUSTER_TOKEN, which every call between Baton's processes then needs."""
    keys: str = ""
    """A Secret with files of API keys, one key per line, mounted at /etc/baton/keys in gateways;
    name them in `config.gateway` as `file:/etc/baton/keys/NAME`. Empty: `NAME-keys`, where NAME is
    the RayService; it may be created later. Changing the name needs a new cluster."""
    certificate: str = ""
    """A Secret with tls.crt, tls.key and ca.crt (`baton certs` makes them), mounted at
    /etc/baton/cluster in workers; name the files in `config.security`. Empty: `NAME-cluster`,
    likewise."""
