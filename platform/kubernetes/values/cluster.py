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
    """It never follows the chart's version: a new one replaces the cluster. Name your own."""
    digest: str = ""
    """`sha256:...`; goes before the tag."""
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"


class GlobalValues(ChartNode, frozen=True, kw_only=True):
    """Values that several charts share."""

    image_registry: str = ""


class SurgeValues(ChartNode, frozen=True, kw_only=True):
    """Settings of the upgrade strategy NewClusterWithIncrementalUpgrade."""

    gateway_class_name: str = ""
    max_surge_percent: Share = 100
    """Percent of its size that the new cluster may have beside the old one."""
    step_size_percent: Share = 10
    """Percent of the traffic that is moved at a time."""
    interval_seconds: Count = 30
    """Seconds between two such steps."""


class UpgradeValues(ChartNode, frozen=True, kw_only=True):
    """What happens to a change that needs another cluster."""

    type: Literal["None", "NewCluster", "NewClusterWithIncrementalUpgrade"] = "None"
    """`None`: such a change is ignored until the RayService is made anew. `NewCluster`: a second
    cluster comes up first, with as many GPUs again."""
    compare: bool = True
    """Whether, with `None`, an upgrade whose `config` wants what the pods that run lack (a volume,
    a port, a device) is refused. Helm reads the RayService and its RayCluster for it."""
    surge: SurgeValues = SurgeValues()


class RayServiceValues(ChartNode, frozen=True, kw_only=True):
    """The RayService's own settings."""

    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    initializing_timeout: str = "1h"
    """How long a new cluster may take until it serves: longer than the largest model loads."""
    deletion_delay_seconds: NonNegative = 60
    """How long an old cluster stays after an upgrade."""
    suspend: bool = False


class AutoscalerValues(ChartNode, frozen=True, kw_only=True):
    """Ray's autoscaler, beside the head: pods for replicas that find no place."""

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
    """What has worker groups follow the numbers of replicas; `config.planner.nodes: kuberay` turns
    it on."""

    topology_keys: list[str] = msgspec.field(default_factory=list)
    """Labels of nodes that tell where they are, the widest first, such as
    `topology.kubernetes.io/zone`: pods that are alone there go first. It may read nodes then."""
    resources: Free = msgspec.field(
        default_factory=lambda: {
            "requests": {"cpu": "50m", "memory": "384Mi"},
            "limits": {"cpu": "500m", "memory": "384Mi"},
        }
    )


class FaultToleranceValues(ChartNode, frozen=True, kw_only=True):
    """Ray's control store outlives its head, in a Redis of yours."""

    enabled: bool = False
    redis_address: str = ""
    """host:port"""
    redis_username: SecretRef = SecretRef()
    redis_password: SecretRef = SecretRef()
    reconnect_seconds: Count = 600
    """How long workers serve on without the head."""


class RayAuthValues(ChartNode, frozen=True, kw_only=True):
    """Access to Ray: its dashboard, jobs and processes."""

    mode: Literal["disabled", "token"] = "token"
    """`token`: KubeRay makes a Secret, and all pods have it. Ray 2.52 or newer."""
    secret_name: str = ""
    """A Secret of yours with the key `auth_token`. Empty: KubeRay's."""


class ServiceAccountValues(ChartNode, frozen=True, kw_only=True):
    """The account of all pods. It may do nothing; with the autoscaler KubeRay gives the head one of
    its own."""

    create: bool = True
    name: str = ""
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class RbacValues(ChartNode, frozen=True, kw_only=True):
    """Roles of what has groups follow; nothing else of the chart's has any."""

    create: bool = True
    """False: bind the account `NAME-groups` yourself, to the Roles that `true` would make."""


class TestValues(ChartNode, frozen=True, kw_only=True):
    """What `helm test` asks gateways with."""

    api_key: SecretRef = SecretRef()
    """A key of theirs, itself and not its hash. Empty: where keys are asked for, no request is
    made."""


class ModelClaimValues(ChartNode, frozen=True, kw_only=True):
    """A volume that all replicas read models from."""

    existing_claim: str = ""
    create: bool = False
    size: str = "500Gi"
    storage_class_name: str = ""
    access_modes: list[str] = msgspec.field(default_factory=lambda: ["ReadWriteMany"])


class ModelStorageValues(ChartNode, frozen=True, kw_only=True):
    """Where models lie, and where what is downloaded is kept."""

    mount_path: str = "/models"
    """`config.model` is a folder in it, or its id or URL: what is fetched is put there, too."""
    claim: ModelClaimValues = ModelClaimValues()
    host_path: str = ""
    """A folder of each node, in the place of a claim. The restricted pod security refuses it. With
    `readOnly`: a folder that Kubernetes made would be root's, and pods are user 10001."""
    read_only: bool = False
    """Nothing is downloaded then."""
    object_store: SecretRef = SecretRef()
    """Credentials of an object store: every key of the Secret is a variable, whatever `key` is."""
    hub_token: SecretRef = SecretRef()
    """HF_TOKEN, for models that want one."""


class ClusterSecurityValues(ChartNode, frozen=True, kw_only=True):
    """Security between Baton's own processes; see docs/operating/access.md."""

    token: SecretRef = SecretRef()
    """BATON_CLUSTER_TOKEN, without which no call between Baton's processes is served."""
    keys: str = ""
    """A Secret with files of API keys, a key a line, mounted at /etc/baton/keys in gateways: name
    them in `config.gateway` as `file:/etc/baton/keys/NAME`. Empty: `NAME-keys`, after the
    RayService, which may be made later. Another name is another cluster."""
    certificate: str = ""
    """A Secret with tls.crt, tls.key and ca.crt (`baton certs` makes them), mounted at
    /etc/baton/cluster in workers: name the files in `config.security`. Empty: `NAME-cluster`,
    likewise."""
