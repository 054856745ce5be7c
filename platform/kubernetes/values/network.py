"""Values of how clients come in, and who may not."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from baton.core.config_node import Count, NonNegative
from baton.platform.kubernetes.values.node import ChartNode, Free

API_PATHS = ("/v1", "/v2", "/tokenize", "/detokenize", "/classify", "/score", "/rerank", "/pooling")
"""Paths of gateways' public port, below which keys are asked for."""
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
    """A name of the Ingress."""

    host: str
    paths: list[str] = msgspec.field(default_factory=list)
    """Empty: `ingress.paths`."""


class IngressValues(ChartNode, frozen=True, kw_only=True):
    """An Ingress for HTTP."""

    enabled: bool = False
    class_name: str = ""
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    """Let its controller neither buffer answers nor cut long ones off."""
    hosts: list[IngressHostValues] = msgspec.field(default_factory=list)
    paths: list[str] = msgspec.field(default_factory=lambda: [*API_PATHS])
    """Paths of all hosts that say nothing else: the whole API. What else a gateway answers (its
    front page, `/docs`, `/health`) is not led outside."""
    tls: list[Free] = msgspec.field(default_factory=list)


class RouteValues(ChartNode, frozen=True, kw_only=True):
    """A route of the Gateway API."""

    enabled: bool = False
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    parent_refs: list[Free] = msgspec.field(default_factory=list)
    """Gateways that carry it."""
    hostnames: list[str] = msgspec.field(default_factory=list)
    filters: list[Free] = msgspec.field(default_factory=list)


class HttpRouteValues(RouteValues, frozen=True, kw_only=True):
    """An HTTPRoute."""

    paths: list[str] = msgspec.field(default_factory=lambda: [*API_PATHS])
    """The whole API, likewise."""
    request_timeout: str = ""
    """Timeout, at least what gateways give a request. Empty: as long as the longest of
    `request_timeout_s` of `config.gateway` and its tenants."""


class GrpcRouteValues(RouteValues, frozen=True, kw_only=True):
    """A GRPCRoute."""

    services: list[str] = msgspec.field(default_factory=lambda: [*GRPC_SERVICES])
    """What clients reach: the API, health checks, and reflection, by which tools such as `grpcurl`
    ask what there is."""


class PickerValues(ChartNode, frozen=True, kw_only=True):
    """The endpoint picker of an InferencePool."""

    name: str = ""
    port: NodePort = 9002
    failure_mode: Literal["FailOpen", "FailClose"] = "FailOpen"


class InferencePoolValues(ChartNode, frozen=True, kw_only=True):
    """The gateways as an InferencePool. Baton's gateways route by themselves: this is for meshes
    that address pools only."""

    enabled: bool = False
    endpoint_picker: PickerValues = PickerValues()


class CertManagerValues(ChartNode, frozen=True, kw_only=True):
    """A Certificate that cert-manager renews."""

    enabled: bool = False
    issuer_ref: Free = msgspec.field(default_factory=dict)
    dns_names: list[str] = msgspec.field(default_factory=list)
    duration: str = "2160h"


class BackendPolicyValues(ChartNode, frozen=True, kw_only=True):
    """How the Gateway of a route trusts the certificate of Baton's gateways."""

    made_by: Literal["", "chart", "others"] = ""
    """`chart`: a BackendTLSPolicy (Gateway API 1.4). `others`: it is told in another way."""
    hostname: str = ""
    """A name that the certificate bears. Empty: the first of `certManager.dnsNames`."""
    ca_certificate_refs: list[Free] = msgspec.field(default_factory=list)
    """ConfigMaps with ca.crt. Empty: the authorities that the Gateway's system trusts."""


class TlsValues(ChartNode, frozen=True, kw_only=True):
    """The certificate of the gateways' ports, mounted at /etc/baton/tls: name its files in
    `config.gateway`."""

    secret_name: str = ""
    """A Secret with tls.crt and tls.key. Empty: no encryption, unless cert-manager makes one."""
    cert_manager: CertManagerValues = CertManagerValues()
    backend_policy: BackendPolicyValues = BackendPolicyValues()


class NetworkPolicyValues(ChartNode, frozen=True, kw_only=True):
    """Clients reach gateways alone, KV travels between workers alone, and Ray stays inside."""

    enabled: bool = True
    clients: list[Free] = msgspec.field(default_factory=list)
    """Clients that may call the gateways, as NetworkPolicy peers. Empty: everybody."""
    operator: list[Free] = msgspec.field(
        default_factory=lambda: [
            {
                "namespaceSelector": {},
                "podSelector": {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}},
            }
        ]
    )
    """Where the KubeRay operator runs: it speaks to the head's dashboard."""
    monitoring: list[Free] = msgspec.field(
        default_factory=lambda: [
            {
                "namespaceSelector": {},
                "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
            }
        ]
    )
    """Where Prometheus runs."""
    dns: list[Free] = msgspec.field(
        default_factory=lambda: [
            {"namespaceSelector": {}},
            {"ipBlock": {"cidr": "169.254.0.0/16"}},
        ]
    )
    """Where names are resolved, on port 53: pods of any namespace, or NodeLocal DNSCache, which is
    no pod of the network but a link-local address of each node."""
    host_network_cidrs: list[str] = msgspec.field(default_factory=list)
    """Addresses of nodes, in CIDR notation. Pods with `hostNetwork` speak from these, and any
    process of those nodes then reaches the release's pods."""
    allow_https: bool = True
    """Pods may reach TCP 443 and 6443 anywhere: hubs, object stores, the API server (which the
    autoscaler needs). Ports of `config.model`, `config.tiers.store.url` and
    `config.tracing.otlp_endpoint` are open anyhow; an object store on another port wants
    `extraEgress`."""
    extra_ingress: list[Free] = msgspec.field(default_factory=list)
    """Rules more, of all Ray pods."""
    extra_egress: list[Free] = msgspec.field(default_factory=list)


class DisruptionValues(ChartNode, frozen=True, kw_only=True):
    """How many pods of a worker group may be away at once when nodes are drained."""

    enabled: bool = True
    max_unavailable: Count = 1
    """Most pods of a group's minimum that may be unavailable; of groups of one pod any may go."""


class RayPortValues(ChartNode, frozen=True, kw_only=True):
    """Ports of Ray's processes, fixed so that network policies can name them."""

    node_manager: NonNegative = 6380
    object_manager: NonNegative = 6381
    runtime_env_agent: NonNegative = 6382
    agent_grpc: NonNegative = 6383
    agent: NonNegative = 52365
    """Health, as probes ask for it."""
    metrics: NonNegative = 8080
    min_worker: NonNegative = 10002
    max_worker: NonNegative = 10999
