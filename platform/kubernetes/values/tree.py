"""All values of the chart, with their defaults, from which values.yaml, its schema and the chart's
README are generated.

    config                          the deployment, as `baton serve -f` reads it
    image, rayService ... rayAuth   the RayService
    head, workerGroups              its pods
    model, security                 volumes and Secrets mounted into them
    service ... networkPolicy       how clients reach the gateways
    monitoring, collector           Prometheus, Grafana, OpenTelemetry
"""

from __future__ import annotations

from typing import Any

import msgspec

from baton.core.errors import InvalidConfig
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.kubernetes.values.cluster import (
    AutoscalerValues,
    ClusterSecurityValues,
    FaultToleranceValues,
    FollowValues,
    GlobalValues,
    ImageValues,
    ModelStorageValues,
    RayAuthValues,
    RayServiceValues,
    RbacValues,
    ServiceAccountValues,
    TestValues,
    UpgradeValues,
)
from baton.platform.kubernetes.values.monitoring import CollectorValues, MonitoringValues
from baton.platform.kubernetes.values.network import (
    DisruptionValues,
    GrpcRouteValues,
    HttpRouteValues,
    InferencePoolValues,
    IngressValues,
    NetworkPolicyValues,
    RayPortValues,
    ServiceValues,
    TlsValues,
)
from baton.platform.kubernetes.values.node import ChartNode, Free
from baton.platform.kubernetes.values.pods import HeadValues, WorkerGroupValues, WorkerValues

ROLE_LABEL = "baton-role"
"""Label of Ray's nodes, so that each pool finds its own."""


def default_config() -> dict[str, Any]:
    """Settings that differ from `DeploymentConfig()` in a cluster."""
    placed = {role: {"placement": {"labels": {ROLE_LABEL: role}}} for role in ("prefill", "decode")}
    gateway = {
        "host": "0.0.0.0",
        "placement": {"labels": {ROLE_LABEL: "gateway"}, "max_per_node": 1},
    }
    return {"model": "demo", "gateway": gateway, **placed}


def default_groups() -> list[dict[str, Any]]:
    return [{"name": role, "role": role} for role in ("gateway", "prefill", "decode")]


class ChartValues(ChartNode, frozen=True, kw_only=True):
    """Baton on KubeRay."""

    name_override: str = ""
    fullname_override: str = ""
    """Name of the RayService and, with suffixes, of all other objects; at most 47 characters."""
    common_labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels of all objects except Ray's pods, where a new label would need a new cluster."""
    common_annotations: dict[str, str] = msgspec.field(default_factory=dict)
    global_: GlobalValues = msgspec.field(default_factory=GlobalValues, name="global")
    image: ImageValues = ImageValues()
    image_pull_secrets: list[Free] = msgspec.field(default_factory=list)
    ray_version: str = "2.60.0"
    """Ray's version in the image."""
    config: DeploymentConfig = DeploymentConfig()
    """The deployment: the tree of `baton serve -f`, passed to the application unchanged.
    docs/configuration.md lists every setting."""
    ray_service: RayServiceValues = RayServiceValues()
    upgrade: UpgradeValues = UpgradeValues()
    autoscaler: AutoscalerValues = AutoscalerValues()
    follow: FollowValues = FollowValues()
    fault_tolerance: FaultToleranceValues = FaultToleranceValues()
    ray_auth: RayAuthValues = RayAuthValues()
    head: HeadValues = HeadValues()
    worker_defaults: WorkerValues = WorkerValues()
    worker_groups: list[WorkerGroupValues] = msgspec.field(default_factory=list)
    """Groups of pods; `workerDefaults` has their defaults. Append new groups: KubeRay adds those at
    the end to the running cluster, but replaces the cluster if one is inserted before others.
    Exactly one has the role gateway."""
    ray_ports: RayPortValues = RayPortValues()
    service_account: ServiceAccountValues = ServiceAccountValues()
    rbac: RbacValues = RbacValues()
    model: ModelStorageValues = ModelStorageValues()
    security: ClusterSecurityValues = ClusterSecurityValues()
    service: ServiceValues = ServiceValues()
    ingress: IngressValues = IngressValues()
    http_route: HttpRouteValues = HttpRouteValues()
    grpc_route: GrpcRouteValues = GrpcRouteValues()
    inference_pool: InferencePoolValues = InferencePoolValues()
    tls: TlsValues = TlsValues()
    network_policy: NetworkPolicyValues = NetworkPolicyValues()
    disruption_budget: DisruptionValues = DisruptionValues()
    monitoring: MonitoringValues = MonitoringValues()
    collector: CollectorValues = CollectorValues()
    test: TestValues = TestValues()
    extra_objects: list[Any] = msgspec.field(default_factory=list)
    """Additional manifests, as objects or as text; templates in them are rendered."""


def default_values() -> dict[str, Any]:
    """The values of values.yaml."""
    values: dict[str, Any] = msgspec.to_builtins(ChartValues())
    return {**values, "config": default_config(), "workerGroups": default_groups()}


def check_values(values: Any) -> ChartValues:
    """Raises InvalidConfig with the path to the mistake."""
    try:
        return msgspec.convert(values, ChartValues)
    except msgspec.ValidationError as error:
        raise InvalidConfig(str(error)) from None
