"""Traces over a real OTLP connection: a collector of ten lines."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as rpc
from tests.gateway.scripted import serving


class Collector(rpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.received: asyncio.Queue[pb.ExportTraceServiceRequest] = asyncio.Queue()

    async def Export(
        self, request: pb.ExportTraceServiceRequest, context: object
    ) -> pb.ExportTraceServiceResponse:
        self.received.put_nowait(request)
        return pb.ExportTraceServiceResponse()


async def test_a_request_is_a_span_with_its_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector()
    server = grpc.aio.server()
    rpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")

    async with serving() as served:
        answer = await served.complete(prompt="hello", max_tokens=3)
        assert answer.status_code == 200
        async with asyncio.timeout(20):
            request = await collector.received.get()

    await server.stop(0)
    [span] = request.resource_spans[0].scope_spans[0].spans
    attributes = {a.key: a.value for a in span.attributes}
    assert span.name == "generate"
    assert attributes["baton.outcome"].string_value == "ok"
    assert attributes["baton.prompt_tokens"].int_value > 0
    assert span.end_time_unix_nano > span.start_time_unix_nano
