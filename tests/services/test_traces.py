"""Spans of all processes, as a collector gets them over OTLP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio
import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.gateway.scripted import make_model
from tests.in_process_fleet import Fleet, running_fleet
from tests.trace_collector import CALLER, CONTEXT, TRACEPARENT, Collector, collecting

from baton.core.errors import InvalidConfig, Unavailable
from baton.core.ids import ReplicaId
from baton.core.tracing import NO_TRACES
from baton.engine.request.step_report import StepReport
from baton.engine.step_hooks import ALONE, StepHooks
from baton.gateway.access.config import GatewayConfig
from baton.gateway.fleet.running.running_request import RunningRequest
from baton.gateway.requests.generations.generation import Generation
from baton.gateway.requests.reporting import Reporting
from baton.gateway.server import GatewayServer
from baton.platform.observe.config import TracingConfig
from baton.platform.observe.otel import start_tracing
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

PROMPT = [5, 6, 7, 8, 9, 10]


@dataclass
class World:
    fleet: Fleet
    collector: Collector
    http: httpx.AsyncClient
    grpc_target: str


@asynccontextmanager
async def traced_world(prefill: int = 1, decode: int = 1) -> AsyncIterator[World]:
    """Everything is over, and sent, when the context is left."""
    with collecting() as (collector, endpoint):
        changes = {"tracing.otlp_endpoint": endpoint}
        async with running_fleet(prefill=prefill, decode=decode, changes=changes) as fleet:
            gateway = GatewayServer(
                model=make_model(),
                dispatcher=fleet.dispatcher,
                config=GatewayConfig(port=0, grpc_port=0),
                reporting=Reporting(
                    tracer=start_tracing(TracingConfig(otlp_endpoint=endpoint), "gateway", "g")
                ),
            )
            await gateway.start()
            url = f"http://127.0.0.1:{gateway.http_port}"
            try:
                async with httpx.AsyncClient(base_url=url, timeout=60) as http:
                    yield World(fleet, collector, http, f"127.0.0.1:{gateway.grpc_port}")
                    await fleet.assert_nothing_is_held()
            finally:
                await gateway.stop(5)


async def complete(world: World) -> dict[str, object]:
    body = {"model": "org/tiny", "prompt": PROMPT, "max_tokens": 4}
    answer = await world.http.post(
        "/v1/completions", json=body, headers={**dict(CONTEXT), "x-request-id": "mine"}
    )
    assert answer.status_code == 200, answer.text
    result: dict[str, object] = answer.json()
    return result


def attributes(span: Span) -> dict[str, object]:
    return {it.key: getattr(it.value, it.value.WhichOneof("value") or "") for it in span.attributes}


async def test_a_request_is_one_trace_through_all_processes() -> None:
    async with traced_world() as world:
        await complete(world)

    collector = world.collector
    assert collector.names() == [
        "baton-decode: ask for prefill",
        "baton-decode: decode",
        "baton-decode: tokens",
        "baton-decode: transfer",
        "baton-prefill: compute",
        "baton-prefill: prefill",
        "baton-prefill: queue",
        "gateway: attempt",
        "gateway: first token",
        "gateway: generate",
        "gateway: place",
        "gateway: text_completion org/tiny",
    ]
    collector.assert_connected()
    [call], [generate] = collector.named("text_completion org/tiny"), collector.named("generate")
    [transfer] = collector.named("transfer")
    assert (call.kind, call.parent_span_id.hex()) == (Span.SPAN_KIND_SERVER, CALLER)
    assert attributes(call)["http.response.status_code"] == 200
    assert attributes(call)["baton.request_id"] == "mine"
    said = attributes(generate)
    assert said["gen_ai.operation.name"] == "text_completion"
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (6, 4)
    assert (said["baton.outcome"], said["baton.transport"]) == ("ok", "grpc")
    assert attributes(transfer)["baton.kv_bytes"] == said["baton.kv_bytes"]
    assert not [span for _, span in collector.spans if span.status.code]


async def test_grpc_calls_are_traced_as_well() -> None:
    async with traced_world() as world, grpc.aio.insecure_channel(world.grpc_target) as channel:
        request = pb.GenerateRequest(
            tokens=pb.TokenIds(ids=PROMPT),
            sampling=pb.SamplingOptions(max_tokens=4),
            request_id="mine",
        )
        call = InferenceStub(channel).Generate(request, metadata=CONTEXT)
        async for _ in call:
            pass

    world.collector.assert_connected()
    [call_span] = world.collector.named("text_completion org/tiny")
    assert attributes(call_span)["rpc.response.status_code"] == "OK"
    assert attributes(call_span)["baton.request_id"] == "mine"


async def test_a_call_has_failed_by_the_servers_fault_alone() -> None:
    async def lost(generation: Generation) -> RunningRequest:
        raise Unavailable("nobody is there")

    async def broken(generation: Generation) -> RunningRequest:
        raise ValueError("nobody foresaw it")

    async with traced_world() as world, grpc.aio.insecure_channel(world.grpc_target) as channel:

        async def ask(num_tokens: int) -> None:
            body = {"model": "org/tiny", "prompt": PROMPT[:num_tokens]}
            await world.http.post("/v1/completions", json=body, headers=dict(CONTEXT))
            asked = pb.GenerateRequest(tokens=pb.TokenIds(ids=PROMPT[:num_tokens]))
            with pytest.raises(grpc.aio.AioRpcError):
                await InferenceStub(channel).Generate(asked, metadata=CONTEXT).read()

        await ask(0)
        world.fleet.dispatcher.start = lost  # type: ignore[method-assign]
        await ask(6)
        world.fleet.dispatcher.start = broken  # type: ignore[method-assign]
        body = {"model": "org/tiny", "prompt": PROMPT}
        await world.http.post("/v1/completions", json=body, headers=dict(CONTEXT))

    calls = world.collector.named("text_completion org/tiny")
    assert [span.status.message for span in calls] == ["", "", "503", "UNAVAILABLE", "ValueError"]
    assert attributes(calls[-1])["http.response.status_code"] == 500


async def test_the_trace_stays_whole_when_the_prefill_replica_dies() -> None:
    async with traced_world() as world:
        fleet = world.fleet
        prefill = ReplicaId("prefill-1")
        engine = fleet.engines[prefill]
        engine.step = _suspend  # type: ignore[method-assign]
        asked = asyncio.create_task(complete(world))
        async with asyncio.timeout(60):
            while not engine.request_ids:
                await asyncio.sleep(0.01)
        await fleet.crash(prefill)
        await asked

    collector = world.collector
    collector.assert_connected()
    [asking], [decode] = collector.named("ask for prefill"), collector.named("decode")
    assert asking.status.code == 2
    assert asking.parent_span_id == decode.span_id
    assert not decode.status.code
    there, here = collector.named("prefill")
    assert (there.parent_span_id, here.parent_span_id) == (asking.span_id, decode.span_id)


def _suspend(hooks: StepHooks = ALONE) -> StepReport:
    return StepReport()


async def test_an_attempt_that_was_lost_is_linked_to_by_the_next() -> None:
    async with traced_world(prefill=0, decode=2) as world:
        fleet = world.fleet
        for engine in fleet.engines.values():
            engine.step = _suspend  # type: ignore[method-assign]
        asked = asyncio.create_task(complete(world))
        async with asyncio.timeout(60):
            while not (busy := [it for it, one in fleet.engines.items() if one.request_ids]):
                await asyncio.sleep(0.01)
        [other] = fleet.engines.keys() - set(busy)
        del fleet.engines[other].step
        await fleet.crash(busy[0])
        await asked

    world.collector.assert_connected()
    first, second = world.collector.named("attempt")
    assert (first.status.code, second.status.code) == (2, 0)
    assert [link.span_id for link in second.links] == [first.span_id]


async def test_what_is_not_sampled_is_sampled_nowhere() -> None:
    async with traced_world() as world:
        body = {"model": "org/tiny", "prompt": PROMPT, "max_tokens": 2}
        headers = {"traceparent": TRACEPARENT.removesuffix("01") + "00"}
        await world.http.post("/v1/completions", json=body, headers=headers)

    assert not world.collector.spans


def test_nothing_is_traced_without_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)

    assert start_tracing(TracingConfig(), "gateway", "g") is NO_TRACES


@pytest.mark.parametrize("lacks", ["protocol", "sdk"])
def test_an_environment_that_cannot_be_followed_is_said_and_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lacks: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    if lacks == "protocol":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    else:
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    assert start_tracing(TracingConfig(), "gateway", "g") is NO_TRACES
    assert "nothing is traced" in caplog.text
    if lacks == "sdk":
        with pytest.raises(InvalidConfig, match=r"tracing\.otlp_endpoint"):
            start_tracing(TracingConfig(otlp_endpoint="http://c:4317"), "gateway", "g")
