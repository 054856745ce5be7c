"""Spans by OpenTelemetry's SDK, sent to a collector by OTLP over gRPC."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from baton.core.errors import InvalidConfig
from baton.core.tracing import (
    NO_CONTEXT,
    NO_TRACES,
    NOTHING,
    Attributes,
    Kind,
    Span,
    TraceContext,
    Tracer,
)
from baton.platform.observe.config import TracingConfig

if TYPE_CHECKING:  # installed with the extra only
    from opentelemetry import context as otel_context
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger(__name__)

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
GRPC = "grpc"
SAMPLER = "OTEL_TRACES_SAMPLER"


def start_tracing(config: TracingConfig, service: str, instance: str) -> Tracer:
    """The tracer of the process that is `instance` of `service`.

    Raises InvalidConfig if an endpoint is configured but the SDK is missing. If only the
    environment asks for tracing, problems are logged, and the process runs without.
    """
    if not (config.otlp_endpoint or os.environ.get(ENDPOINT) or os.environ.get(TRACES_ENDPOINT)):
        return NO_TRACES
    protocol = os.environ.get(TRACES_PROTOCOL) or os.environ.get(PROTOCOL) or GRPC
    if not config.otlp_endpoint and protocol != GRPC:
        log.warning(
            "%s asks for traces by %s, and there is grpc alone: nothing is traced. Say "
            "tracing.otlp_endpoint, or %s=grpc, with a collector's gRPC port",
            ENDPOINT, protocol, TRACES_PROTOCOL,
        )  # fmt: skip
        return NO_TRACES
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
    except ImportError as error:
        remedy = "pip install 'baton-llm[telemetry]'"
        if config.otlp_endpoint:
            raise InvalidConfig(f"tracing.otlp_endpoint is set: {remedy}") from error
        log.warning("%s is set, and nothing is traced: %s", ENDPOINT, remedy)
        return NO_TRACES
    resource = {"service.name": service, "service.instance.id": instance}
    said = os.environ.get(SAMPLER)  # the SDK reads it, if it is given no sampler
    provider = TracerProvider(
        resource=Resource.create(resource),
        sampler=None if said else ParentBasedTraceIdRatio(config.sample_ratio),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(endpoint=config.otlp_endpoint or None)
    period_ms = config.export_every_s * 1e3
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=period_ms))
    return OtelTracer(provider)


class OtelTracer:
    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("baton")

    def start(
        self,
        name: str,
        parent: TraceContext = NO_CONTEXT,
        kind: Kind = "internal",
        *,
        attributes: Attributes = NOTHING,
    ) -> Span:
        span = self._tracer.start_span(name, _read(parent), _kind(kind), attributes)
        return OtelSpan(self._tracer, span)

    def close(self) -> None:
        self._provider.shutdown()


class OtelSpan:
    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def context(self) -> TraceContext:
        own = self._span.get_span_context()
        return TraceContext(
            f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}",
            own.trace_state.to_header(),
        )

    @property
    def is_recording(self) -> bool:
        return self._span.is_recording()

    def child(
        self,
        name: str,
        kind: Kind = "internal",
        *,
        links: Sequence[TraceContext] = (),
        attributes: Attributes = NOTHING,
    ) -> Span:
        from opentelemetry import trace

        linked = [trace.get_current_span(_read(link)).get_span_context() for link in links]
        span = self._tracer.start_span(
            name,
            self._within(),
            _kind(kind),
            attributes,
            [trace.Link(one) for one in linked if one.is_valid],
        )
        return OtelSpan(self._tracer, span)

    def record(
        self,
        name: str,
        seconds: float,
        *,
        ended_ago_s: float = 0.0,
        attributes: Attributes = NOTHING,
    ) -> None:
        ended_ns = time.time_ns() - int(ended_ago_s * 1e9)
        began_ns = ended_ns - int(seconds * 1e9)
        span = self._tracer.start_span(
            name, self._within(), attributes=attributes, start_time=began_ns
        )
        span.end(ended_ns)

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def end(self, error: str = "") -> None:
        from opentelemetry.trace import StatusCode

        if not self._span.is_recording():
            return  # ended, or not sampled
        if error:
            self._span.set_status(StatusCode.ERROR, error)
        self._span.end()

    def _within(self) -> otel_context.Context:
        from opentelemetry import trace
        from opentelemetry.context import Context

        return trace.set_span_in_context(self._span, Context())


def _read(context: TraceContext) -> otel_context.Context:
    """Parse a trace context; the current span is not used as a parent."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation import tracecontext

    propagator = tracecontext.TraceContextTextMapPropagator()
    return propagator.extract(context._asdict(), Context())


def _kind(kind: Kind) -> trace.SpanKind:
    from opentelemetry.trace import SpanKind

    return {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}[
        kind
    ]
