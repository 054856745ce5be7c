"""Values for Prometheus, Grafana and OpenTelemetry."""

from __future__ import annotations

from typing import Annotated

import msgspec

from baton.core.config_node import Count
from baton.platform.kubernetes.values.node import ChartNode, Free, PlacedValues


class MonitorValues(ChartNode, frozen=True, kw_only=True):
    """A monitor of the Prometheus operator."""

    enabled: bool | None = None
    """null: only if the cluster has the resource type."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels by which a Prometheus selects it."""
    interval: str = "15s"
    scrape_timeout: str = "10s"
    honor_labels: bool = False
    relabelings: list[Free] = msgspec.field(default_factory=list)
    metric_relabelings: list[Free] = msgspec.field(default_factory=list)


class RuleValues(ChartNode, frozen=True, kw_only=True):
    """Alerts, from the chart's rules/*.yaml."""

    enabled: bool | None = None
    """null: only if the cluster has the resource type."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    runbooks: str = ""
    """Where this repository can be read, as a URL: alerts then link to their runbooks."""
    extra_groups: list[Free] = msgspec.field(default_factory=list)


class DashboardValues(ChartNode, frozen=True, kw_only=True):
    """Grafana's dashboards as ConfigMaps, from the chart's dashboards/*.json."""

    enabled: bool = False
    labels: dict[str, str] = msgspec.field(default_factory=lambda: {"grafana_dashboard": "1"})
    annotations: dict[str, str] = msgspec.field(default_factory=lambda: {"grafana_folder": "Baton"})


class MonitoringValues(ChartNode, frozen=True, kw_only=True):
    """Prometheus and Grafana."""

    pod_monitor: MonitorValues = MonitorValues()
    """A PodMonitor for Baton's processes and Ray, on all pods."""
    service_monitor: MonitorValues = MonitorValues(enabled=False)
    """A ServiceMonitor with a headless Service, in the place of the PodMonitor."""
    prometheus_rule: RuleValues = RuleValues()
    dashboards: DashboardValues = DashboardValues()


class CollectorValues(PlacedValues, frozen=True, kw_only=True):
    """An OpenTelemetry collector, to which all processes send their spans."""

    enabled: bool = False
    """Run it, and set `config.tracing.otlp_endpoint` if that is empty. A change restarts processes
    in place."""
    sample_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    """`config.tracing.sample_ratio`, unless that is set: the share of requests without trace
    context that are traced."""
    image: str = "otel/opentelemetry-collector-contrib:0.140.0"
    """Image, from `global.imageRegistry` unless it names a registry itself."""
    replicas: Count = 1
    resources: Free = msgspec.field(
        default_factory=lambda: {
            "requests": {"cpu": "200m", "memory": "512Mi"},
            "limits": {"cpu": "1", "memory": "512Mi"},
        }
    )
    exporters: Free = msgspec.field(default_factory=dict)
    """The collector's `exporters`, in its own format; at least one."""
    env: list[Free] = msgspec.field(default_factory=list)
    """Environment variables, for credentials of exporters, from Secrets."""
