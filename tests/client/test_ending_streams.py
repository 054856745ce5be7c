"""Closing a stream tells the server so, and never fails, whatever has become of the rest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from tests.client.both_clients import KINDS, client_of
from tests.client.fake_server import (
    FakeService,
    answering,
    failing,
    fake_server,
    last_response,
    numbered,
    response,
)
from tests.gateway.scripted import Script, serving, soon, tokens_of

from baton.client import calls, errors
from baton.client.async_client import AsyncBatonClient
from baton.client.retry import RetryPolicy
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import add_InferenceServicer_to_server

both = pytest.mark.parametrize("kind", KINDS)


def endless(context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
    yield from numbered(1, response("first"))
    while context.is_active():
        threading.Event().wait(0.01)


@dataclass
class SilentService(FakeService):
    """Answers EndStream only when let."""

    is_asked: threading.Event = field(default_factory=threading.Event)
    may_answer: threading.Event = field(default_factory=threading.Event)

    def EndStream(self, request: Any, context: Any) -> Any:
        self.is_asked.set()
        self.may_answer.wait()
        return super().EndStream(request, context)


@asynccontextmanager
async def silent_server() -> AsyncIterator[tuple[SilentService, str]]:
    service, server = SilentService([endless]), grpc.server(ThreadPoolExecutor(4))
    add_InferenceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield service, f"127.0.0.1:{port}"
    finally:
        service.may_answer.set()
        await asyncio.to_thread(server.stop(None).wait)


async def close_client(kind: str, client: Any) -> None:
    await (client.close() if kind == "sync" else client.aclose())


@both
async def test_the_key_goes_with_it(kind: str) -> None:
    script = Script(tokens=tokens_of("the quick brown fox"), stalls_after=2)
    async with (
        serving(script, api_keys=frozenset({"key"})) as gateway,
        client_of(kind, gateway.grpc_target, api_key="key") as client,
    ):
        async with client.stream("Hello") as stream:
            await anext(stream)
        await soon(gateway.dispatcher.stopped)

    assert len(gateway.dispatcher.stops) == 1


@both
async def test_a_stream_may_be_closed_after_its_client(kind: str) -> None:
    with fake_server(endless) as (service, target):
        async with client_of(kind, target) as client:
            stream = client.stream("x")
            await anext(stream)
            await close_client(kind, client)

            await stream.aclose()

    assert service.ended_streams == []


@both
async def test_a_stream_may_be_closed_after_its_server(kind: str) -> None:
    with ExitStack() as server:
        service, target = server.enter_context(fake_server(endless))
        async with client_of(kind, target) as client:
            stream = client.stream("x")
            await anext(stream)
            server.close()

            await stream.aclose()

    assert service.ended_streams == []


@both
async def test_a_server_that_never_answers_is_not_waited_for_long(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("stream", "async_stream"):
        monkeypatch.setattr(f"baton.client.{module}.END_TIMEOUT_S", calls.END_TIMEOUT_S)
    async with silent_server() as (service, target), client_of(kind, target) as client:
        stream = client.stream("x")
        await anext(stream)

        await stream.aclose()

        assert not service.may_answer.is_set()


async def test_a_client_that_closes_meanwhile_cancels_nobodys_task() -> None:
    async with silent_server() as (service, target), AsyncBatonClient(target) as client:
        stream = client.stream("x")
        await anext(stream)
        closing = asyncio.create_task(stream.aclose())
        await asyncio.to_thread(service.is_asked.wait)

        await client.aclose()
        await closing

    assert not closing.cancelled()


async def test_a_stream_that_another_task_closes_has_an_end_for_who_reads_it() -> None:
    with fake_server(endless, endless) as (_, target):
        async with AsyncBatonClient(target) as client:
            ended, cut = client.stream("x"), client.stream("x")
            readers = [asyncio.create_task(anext(each, None)) for each in (ended, cut)]
            await asyncio.gather(*readers)
            readers = [asyncio.create_task(anext(each, None)) for each in (ended, cut)]
            await asyncio.sleep(0)  # they wait for what does not come

            await ended.aclose()
            await client.aclose()
            first, second = await asyncio.gather(*readers, return_exceptions=True)

    assert first is None
    assert isinstance(second, errors.RequestCancelled)


async def test_a_stream_is_read_by_one_task_at_a_time() -> None:
    with fake_server(endless) as (_, target):
        async with AsyncBatonClient(target) as client, client.stream("x") as stream:
            first, second = await asyncio.gather(
                anext(stream), anext(stream), return_exceptions=True
            )

    assert isinstance(second, RuntimeError)
    assert not isinstance(first, BaseException) and first.text == "first"


@dataclass(frozen=True, kw_only=True)
class ClosingMeanwhile(RetryPolicy):
    """Somebody closes the stream while it waits before its next attempt."""

    close: Callable[[], Any]

    def delay_s(self, error: errors.BatonClientError, num_failed: int) -> float:
        self.close()
        return 0.01


@both
async def test_a_stream_that_is_closed_before_it_asks_again_does_not_ask_again(kind: str) -> None:
    def close() -> None:
        if kind == "sync":
            asyncio.run(stream.aclose())
        else:
            closings.append(asyncio.create_task(stream.aclose()))

    closings: list[asyncio.Task[None]] = []
    failure, answer = failing(grpc.StatusCode.UNAVAILABLE), answering(last_response("y"))
    with fake_server(failure, answer) as (service, target):
        async with client_of(kind, target, retry=ClosingMeanwhile(close=close)) as client:
            stream = client.stream("x")

            assert await anext(stream, None) is None
            assert (await client.generate("y")).text == "y"
    assert [request.text for request in service.requests] == ["x", "y"]
