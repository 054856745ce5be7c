"""A span for every request, with its receipt as attributes, sent to an OpenTelemetry collector.

Off unless OTEL_EXPORTER_OTLP_ENDPOINT says where to; needs the extra `otel`. All the usual OTEL_*
variables of the SDK apply.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from baton.core.errors import InvalidConfig
from baton.core.ids import RequestId
from baton.core.messages import Receipt

if TYPE_CHECKING:  # installed with the extra only
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class RequestTraces:
    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("baton")

    def record(
        self, request_id: RequestId, outcome: str, receipt: Receipt, *, seconds: float
    ) -> None:
        """The request has just ended, after so many seconds."""
        ended_ns = time.time_ns()
        attributes = {f"baton.{key}": value for key, value in asdict(receipt).items()}
        attributes |= {"baton.request_id": request_id, "baton.outcome": outcome}
        span = self._tracer.start_span(
            "generate", attributes=attributes, start_time=ended_ns - int(seconds * 1e9)
        )
        span.end(ended_ns)

    def close(self) -> None:
        """Send what is pending."""
        self._provider.shutdown()


def traces_from_environment() -> RequestTraces | None:
    """Raises InvalidConfig if an endpoint is set but the SDK is not installed."""
    if not os.environ.get(ENDPOINT):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InvalidConfig(f"{ENDPOINT} is set: pip install 'baton-llm[otel]'") from error
    provider = TracerProvider(resource=Resource.create({"service.name": "baton-gateway"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return RequestTraces(provider)
