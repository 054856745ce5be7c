"""What an OpenTelemetry collector gets over OTLP, and whether it hangs together."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as rpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT, TRACESTATE = f"00-{TRACE}-{CALLER}-01", "vendor=opaque:1,other=2"
CONTEXT = (("traceparent", TRACEPARENT), ("tracestate", TRACESTATE))
"""Of a caller that traces itself, as headers or metadata."""


@dataclass
class Collector(rpc.TraceServiceServicer):
    spans: list[tuple[str, Span]] = field(default_factory=list)
    """Each with the service it is of."""
    process_by_span: dict[bytes, str] = field(default_factory=dict)

    def Export(
        self, request: otlp.ExportTraceServiceRequest, context: object
    ) -> otlp.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            about = {it.key: it.value.string_value for it in resource.resource.attributes}
            spans = [span for scope in resource.scope_spans for span in scope.spans]
            self.spans += [(about["service.name"], span) for span in spans]
            for span in spans:
                self.process_by_span[span.span_id] = about["service.instance.id"]
        return otlp.ExportTraceServiceResponse()

    def names(self) -> list[str]:
        return sorted(f"{service}: {span.name}" for service, span in self.spans)

    def named(self, name: str) -> list[Span]:
        found = [span for _, span in self.spans if span.name == name]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    def assert_connected(self) -> None:
        """One trace with the caller's state, in which every span but the caller's own is known."""
        assert {span.trace_id.hex() for _, span in self.spans} == {TRACE}
        assert {span.trace_state for _, span in self.spans} == {TRACESTATE}
        assert not self.orphans()

    def orphans(self) -> list[str]:
        known = {span.span_id.hex() for _, span in self.spans} | {CALLER}
        return [span.name for _, span in self.spans if span.parent_span_id.hex() not in known]


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    """It, and its endpoint."""
    collector, server = Collector(), grpc.server(ThreadPoolExecutor(2))
    rpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()
