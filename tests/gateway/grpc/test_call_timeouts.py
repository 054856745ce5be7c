"""Clients of gRPC that open calls and do no more, read nothing, or are gone without a word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from struct import pack
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from tests.gateway.scripted import MODEL, Script, Serving, serving, soon, tokens_of

from baton.gateway.grpc import call_timeouts, server
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

SHORT: dict[str, Any] = {"body_timeout_s": 0.2, "min_body_bytes_per_s": 1 << 30}
REFLECT = "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def refused(gateway: Serving, reason: str) -> str:
    """How often, as the metrics say."""
    line = f'refused_connections_total{{model="{MODEL}",reason="{reason}"}} '
    _, _, rest = gateway.server.metrics_page().partition(line)
    return rest.partition("\n")[0]


async def opened(gateway: Serving, method: str, **call: Any) -> grpc.aio.AioRpcError:
    """How a call ends of which no message comes."""
    async with grpc.aio.insecure_channel(gateway.grpc_target) as channel, asyncio.timeout(120):
        stream: Any = channel.stream_stream(f"/{method}")(**call)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
    return caught.value


@pytest.mark.parametrize(
    "method", ["baton.v1.Inference/Chat", "grpc.health.v1.Health/Check", REFLECT]
)
async def test_a_call_whose_request_never_comes_is_ended(method: str) -> None:
    async with serving(**SHORT) as gateway:
        error = await opened(gateway, method)
        num_late = refused(gateway, "late request")

    assert error.code() is grpc.StatusCode.CANCELLED
    assert "the request did not arrive within 0.2" in (error.details() or "")
    assert num_late == "1"


async def test_who_has_no_key_is_told_so_before_a_request_comes() -> None:
    async with serving(api_keys=frozenset({"key"})) as gateway:
        error = await opened(gateway, "baton.v1.Inference/Chat")

    assert error.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_call_that_ends_without_a_request_is_refused() -> None:
    async with (
        serving() as gateway,
        grpc.aio.insecure_channel(gateway.grpc_target) as channel,
        asyncio.timeout(120),
    ):
        stream: Any = channel.stream_stream("/baton.v1.Inference/Tokenize")()
        await stream.done_writing()
        code = await stream.code()

    assert code is grpc.StatusCode.INVALID_ARGUMENT


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return pack(">I", len(payload))[1:] + pack(">BBI", kind, flags, stream) + payload


def calling_and_reading_nothing(method: str, request: bytes = b"") -> bytes:
    """A call, by HTTP/2, from a client that has room for no byte of a stream."""
    names = (b":method", b":scheme", b":path", b":authority", b"te", b"content-type")
    path = f"/{method}".encode()
    values = (b"POST", b"http", path, b"x", b"trailers", b"application/grpc")
    headers = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
        for name, value in zip(names, values, strict=True)
    )
    no_window = frame(4, 0, 0, pack(">HI", 4, 0))
    message = b"\0" + pack(">I", len(request)) + request
    call = frame(1, 4, 1, headers) + frame(0, 1, 1, message)
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + no_window + call


@asynccontextmanager
async def unreading(gateway: Serving, method: str, request: bytes = b"") -> AsyncIterator[None]:
    """Until its call has been given up; its client answers pings and stays."""
    host, _, port = gateway.grpc_target.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    async def answer_pings() -> None:
        while True:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3]))
            if head[3] == 6 and not head[4]:
                writer.write(frame(6, 1, 0, payload))
            elif head[3] == 4 and not head[4]:
                writer.write(frame(4, 1, 0, b""))

    answering = asyncio.create_task(answer_pings())
    try:
        writer.write(calling_and_reading_nothing(method, request))
        while not refused(gateway, "unread answer"):
            await asyncio.sleep(0.02)
        assert not answering.done()
        yield
    finally:
        answering.cancel()
        writer.close()


STREAM = pb.GenerateRequest(text="Hi").SerializeToString()


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("baton.v1.Inference/Generate", STREAM),
        ("baton.v1.Inference/ListModels", b""),
        ("grpc.health.v1.Health/Watch", b""),
    ],
)
async def test_who_reads_nothing_keeps_nobody_from_draining(
    method: str, request_: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SETTLING_S", 0.05)
    async with (
        serving(unread_timeout_s=0.2, min_body_bytes_per_s=1e9) as gateway,
        unreading(gateway, method, request_),
        asyncio.timeout(120),
    ):
        await gateway.server.stop(600)


@pytest.mark.parametrize("method", ["baton.v1.Inference/Chat", REFLECT])
async def test_who_sends_no_request_keeps_nobody_from_draining(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_timeouts, "LAST_REQUESTS_S", 0.05)
    is_awaited, reading = asyncio.Event(), call_timeouts.OpenCalls.reading

    def seen(calls: call_timeouts.OpenCalls, limit_s: float) -> AbstractAsyncContextManager[None]:
        is_awaited.set()
        return reading(calls, limit_s)

    monkeypatch.setattr(call_timeouts.OpenCalls, "reading", seen)
    async with (
        serving(body_timeout_s=600) as gateway,
        grpc.aio.insecure_channel(gateway.grpc_target) as channel,
        asyncio.timeout(120),
    ):
        stream: Any = channel.stream_stream(f"/{method}")()
        await is_awaited.wait()
        await gateway.server.stop(600)
        code, details = await stream.code(), await stream.details()

    assert code is grpc.StatusCode.UNAVAILABLE
    assert "the request has not come" in details


async def test_a_call_that_is_read_has_all_of_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SETTLING_S", 0.05)
    script = Script(tokens=tokens_of("the quick brown"), stalls_after=1)
    async with (
        serving(script, unread_timeout_s=1.0, min_body_bytes_per_s=1e9) as gateway,
        grpc.aio.insecure_channel(gateway.grpc_target) as channel,
        asyncio.timeout(120),
    ):
        call: Any = InferenceStub(channel).Generate(pb.GenerateRequest(text="Hi"))
        parts = [await call.read()]
        stopping = asyncio.create_task(gateway.server.stop(600))
        await asyncio.sleep(1.2)  # longer than what nobody takes is waited for
        script.continues.set()
        while (part := await call.read()) is not grpc.aio.EOF:
            parts.append(part)
        code = await call.code()
        await stopping

    assert (code, parts[-1].finish_reason) == (grpc.StatusCode.OK, "length")


async def test_who_watches_health_is_told_of_the_end() -> None:
    async with (
        serving() as gateway,
        grpc.aio.insecure_channel(gateway.grpc_target) as channel,
        asyncio.timeout(120),
    ):
        watching = HealthStub(channel).Watch(HealthCheckRequest())
        told = [(await watching.read()).status]
        await gateway.server.stop(600)
        while (response := await watching.read()) is not grpc.aio.EOF:
            told.append(response.status)

    assert told == [HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING]


@asynccontextmanager
async def relay(target: str) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """A way to `target`, and what cuts it without telling either side."""
    cut = asyncio.Event()
    host, _, port = target.rpartition(":")

    async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while (data := await source.read(1 << 16)) and not cut.is_set():
            sink.write(data)

    async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pass_on(reader, ours), pass_on(theirs, writer))

    server = await asyncio.start_server(between, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", cut
    server.close()


@pytest.mark.wide
async def test_the_request_of_a_client_that_is_gone_without_a_word_is_ended() -> None:
    script = Script(stalls_after=0)
    async with (
        serving(script, keep_alive_s=1, unread_timeout_s=0.5, min_body_bytes_per_s=1e9) as gateway,
        relay(gateway.grpc_target) as (target, cut),
        grpc.aio.insecure_channel(target) as channel,
    ):
        call = InferenceStub(channel).Generate(pb.GenerateRequest(text="Hi"))
        while not gateway.dispatcher.generations:
            await asyncio.sleep(0.01)
        cut.set()
        await soon(gateway.dispatcher.stopped)
        call.cancel()
