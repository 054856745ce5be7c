"""What operators set of metrics and traces."""

from __future__ import annotations

from typing import Annotated

import msgspec

from baton.core.config_node import ConfigNode, Port, Seconds

Positive = Annotated[float, msgspec.Meta(gt=0)]


class MetricsConfig(ConfigNode, frozen=True, kw_only=True):
    """The port of every process for Prometheus (/metrics) and for probes (/healthz, /readyz)."""

    enabled: bool = True
    """False: processes have no such port; a gateway's own has its metrics and `/ready`."""
    host: str = ""
    """Where it listens. Empty: where the process listens for others: gateways at `gateway.host`,
    replicas at the address of their node, or at loopback on a machine of its own."""
    gateway_port: Port = 9400
    """Metrics port of a gateway. On a machine with several of them each has the first of 16 ports
    from here on that is free, as in the other pools. 0 lets the operating system choose; the log
    tells."""
    prefill_port: Port = 9420
    """Metrics port of a prefill replica."""
    decode_port: Port = 9440
    """Metrics port of a decode replica."""
    vllm_names: bool = False
    """Write the series that vLLM has as well, under its names, for scalers and dashboards made
    for it."""
    peak_tflop_s: Positive | None = None
    """What a replica's device can compute, for the utilisation. Empty: by its data sheet."""
    peak_gb_s: Positive | None = None
    """What it can read, likewise."""


class TracingConfig(ConfigNode, frozen=True, kw_only=True):
    """Spans of every request, sent by OTLP; needs the extra `telemetry`."""

    otlp_endpoint: str = ""
    """`http://collector:4317` (gRPC). Empty: what OTEL_EXPORTER_OTLP_ENDPOINT says; nothing is
    traced without either. The other OTEL_* variables of the SDK apply."""
    sample_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """Share of requests traced, of those that come without a trace of their own; else the caller
    has decided."""
    export_every_s: Seconds = 5.0
    """How often spans are sent."""
