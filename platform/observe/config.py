"""Settings of metrics and traces."""

from __future__ import annotations

from typing import Annotated

import msgspec

from baton.core.config_node import ConfigNode, Port, Seconds

Positive = Annotated[float, msgspec.Meta(gt=0)]


class MetricsConfig(ConfigNode, frozen=True, kw_only=True):
    """The port of every process for Prometheus (/metrics) and for probes (/healthz, /readyz)."""

    enabled: bool = True
    """False: no such ports; a gateway's admin port still has its metrics and `/ready`."""
    host: str = ""
    """The address on which it listens. Empty: `gateway.host` for gateways; for replicas the address
    of their node, or loopback on a single machine."""
    gateway_port: Port = 9400
    """Metrics port of a gateway. Each of several on a machine takes the first free one of 16 ports
    from this one on, also in the other pools. 0 lets the operating system choose; the log names the
    port."""
    prefill_port: Port = 9420
    """Metrics port of a prefill replica."""
    decode_port: Port = 9440
    """Metrics port of a decode replica."""
    vllm_names: bool = False
    """Also export metrics under vLLM's names, for autoscalers and dashboards made for vLLM."""
    peak_tflop_s: Positive | None = None
    """Peak TFLOP/s of a replica's device, for its utilisation. Empty: by its data sheet."""
    peak_gb_s: Positive | None = None
    """Peak memory bandwidth of the device in GB/s. Empty: by its data sheet."""


class TracingConfig(ConfigNode, frozen=True, kw_only=True):
    """Spans of every request, sent by OTLP; needs the extra `telemetry`."""

    otlp_endpoint: str = ""
    """`http://collector:4317` (gRPC). Empty: the variable OTEL_EXPORTER_OTLP_ENDPOINT; without
    either, nothing is traced. The SDK's other OTEL_* variables apply."""
    sample_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """Share of requests traced. For a request with trace context, the caller has decided."""
    export_every_s: Seconds = 5.0
    """Seconds between exports of spans."""
