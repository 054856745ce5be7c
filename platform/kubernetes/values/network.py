"""Values of the network: how clients reach the gateways, and network policies."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from baton.core.config_node import Count, NonNegative
from baton.platform.kubernetes.values.node import ChartNode, Free

API_PATHS = ("/v1", "/v2", "/tokenize", "/detokenize", "/classify", "/score", "/rerank", "/pooling")
"""Paths of the gateways' public port that need API keys."""
GRPC_SERVICES = (
    "baton.v1.Inference",
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
)
NodePort = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class ServiceValues(ChartNode, frozen=True, kw_only=True):
    """The Service of the gateways."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    port: NodePort = 80
    """HTTP."""
    grpc_port: NodePort = 8001
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    load_balancer_class: str = ""
    load_balancer_source_ranges: list[str] = msgspec.field(default_factory=list)
    external_traffic_policy: Literal["", "Cluster", "Local"] = ""


class IngressHostValues(ChartNode, frozen=True, kw_only=True):
    """A host of the Ingress."""

    host: str
    paths: list[str] = msgspec.field(default_factory=list)
    """Empty: `ingress.paths`."""


class IngressValues(ChartNode, frozen=True, kw_only=True):
    """An Ingress for HTTP."""

    enabled: bool = False
    class_name: str = ""
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    """Annotations by which the controller neither buffers answers nor cuts long ones off."""
    hosts: list[IngressHostValues] = msgspec.field(default_factory=list)
    paths: list[str] = msgspec.field(default_factory=lambda: [*API_PATHS])
    """Paths of hosts without their own: the whole API. Other paths of a gateway (`/`, `/docs`,
    `/health`) are not exposed."""
    tls: list[Free] = msgspec.field(default_factory=list)


class RouteValues(ChartNode, frozen=True, kw_only=True):
    """A route of the Gateway API."""

    enabled: bool = False
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    parent_refs: list[Free] = msgspec.field(default_factory=list)
    """Gateways (of the Gateway API) that the route is attached to."""
    hostnames: list[str] = msgspec.field(default_factory=list)
    filters: list[Free] = msgspec.field(default_factory=list)


class HttpRouteValues(RouteValues, frozen=True, kw_only=True):
    """An HTTPRoute."""

    paths: list[str] = msgspec.field(default_factory=lambda: [*API_PATHS])
    """Paths of the route: the whole API."""
    request_timeout: str = ""
    """Timeout of requests. Empty: the longest `request_timeout_s` of `config.gateway` and its
    tenants."""


class GrpcRouteValues(RouteValues, frozen=True, kw_only=True):
    """A GRPCRoute."""

    services: list[str] = msgspec.field(default_factory=lambda: [*GRPC_SERVICES])
    """gRPC services that clients can reach: the API, health checks, and reflection, which tools
    such as `grpcurl` use."""


class PickerValues(ChartNode, frozen=True, kw_only=True):
    """The endpoint picker of an InferencePool."""

    name: str = ""
    port: NodePort = 9002
    failure_mode: Literal["FailOpen", "FailClose"] = "FailOpen"


class InferencePoolValues(ChartNode, frozen=True, kw_only=True):
    """The gateways as an InferencePool, for meshes that only address pools. Baton's gateways do the
    routing."""

    enabled: bool = False
    endpoint_picker: PickerValues = PickerValues()


class CertManagerValues(ChartNode, frozen=True, kw_only=True):
    """A Certificate that cert-manager renews."""

    enabled: bool = False
    issuer_ref: Free = msgspec.field(default_factory=dict)
    dns_names: list[str] = msgspec.field(default_factory=list)
    duration: str = "2160h"


class BackendPolicyValues(ChartNode, frozen=True, kw_only=True):
    """How the Gateway of a route verifies the certificate of Baton's gateways."""

    made_by: Literal["", "chart", "others"] = ""
    """`chart`: the chart makes a BackendTLSPolicy (Gateway API 1.4). `others`: you configure it."""
    hostname: str = ""
    """A DNS name in the certificate. Empty: the first of `certManager.dnsNames`."""
    ca_certificate_refs: list[Free] = msgspec.field(default_factory=list)
    """ConfigMaps with ca.crt. Empty: the Gateway's system-wide authorities."""


class TlsValues(ChartNode, frozen=True, kw_only=True):
    """The certificate of the gateways' ports, mounted at /etc/baton/tls; name its files in
    `config.gateway`."""

    secret_name: str = ""
    """A Secret with tls.crt and tls.key. Empty: no encryption, unless cert-manager makes one."""
    cert_manager: CertManagerValues = CertManagerValues()
    backend_policy: BackendPolicyValues = BackendPolicyValues()


class NetworkPolicyValues(ChartNode, frozen=True, kw_only=True):
    """Network policies: clients reach only gateways, KV travels only between workers, and Ray's
    ports are closed to others."""

    enabled: bool = True
    clients: list[Free] = msgspec.field(default_factory=list)
    """Clients that may call the gateways, as NetworkPolicy peers. Empty: all."""
    operator: list[Free] = msgspec.field(
        default_factory=lambda: [
            {
                "namespaceSelector": {},
                "podSelector": {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}},
            }
        ]
    )
    """Peers of the KubeRay operator, which calls the head's dashboard."""
    monitoring: list[Free] = msgspec.field(
        default_factory=lambda: [
            {
                "namespaceSelector": {},
                "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
            }
        ]
    )
    """Peers of Prometheus."""
    dns: list[Free] = msgspec.field(
        default_factory=lambda: [
            {"namespaceSelector": {}},
            {"ipBlock": {"cidr": "169.254.0.0/16"}},
        ]
    )
    """DNS servers, on port 53: pods of any namespace, and NodeLocal DNSCache, a link-local address
    of each node."""
    host_network_cidrs: list[str] = msgspec.field(default_factory=list)
    """Addresses of nodes, in CIDR notation, from which pods with `hostNetwork` call. Any process on
    those nodes can then reach the release's pods."""
    allow_https: bool = True
    """Allow egress to TCP 443 and 6443 anywhere: hubs, object stores, the API server (which the
    autoscaler needs). Ports of `config.model`, `config.adapters`, `config.tiers.store.url` and
    `config.tracing.otlp_endpoint` are always open; an object store on another port needs
    `extraEgress`."""
    extra_ingress: list[Free] = msgspec.field(default_factory=list)
    """Additional ingress rules for all Ray pods."""
    extra_egress: list[Free] = msgspec.field(default_factory=list)


class DisruptionValues(ChartNode, frozen=True, kw_only=True):
    """PodDisruptionBudgets of worker groups, for node drains."""

    enabled: bool = True
    max_unavailable: Count = 1
    """Pods of a group's minimum that may be unavailable; a group of one pod has no budget."""


class RayPortValues(ChartNode, frozen=True, kw_only=True):
    """Ports of Ray's processes, fixed so that network policies can name them."""

    node_manager: NonNegative = 6380
    object_manager: NonNegative = 6381
    runtime_env_agent: NonNegative = 6382
    agent_grpc: NonNegative = 6383
    agent: NonNegative = 52365
    """The port of the node agent, which probes ask for health."""
    metrics: NonNegative = 8080
    min_worker: NonNegative = 10002
    max_worker: NonNegative = 10999
