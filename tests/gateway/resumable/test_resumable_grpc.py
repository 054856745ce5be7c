"""Resumable streams over gRPC, against a whole gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from tests.gateway.scripted import Script, Serving, serving, soon, tokens_of

from baton.core.errors import Overloaded, Unavailable
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

TEXT = "the quick brown fox"
METHODS = ("Generate", "Chat")


def request_for(method: str, **fields: Any) -> Any:
    if method == "Generate":
        return pb.GenerateRequest(text="Hello", **{"resumable": True, **fields})
    messages = [pb.ChatMessage(role="user", content="hi")]
    return pb.ChatRequest(messages=messages, **{"resumable": True, **fields})


@asynccontextmanager
async def stub_of(gateway: Serving) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(gateway.grpc_target) as channel:
        yield InferenceStub(channel)


async def broken_after(stub: Any, method: str, num_responses: int, **fields: Any) -> list[Any]:
    call = getattr(stub, method)(request_for(method, **fields))
    responses = [await call.read() for _ in range(num_responses)]
    call.cancel()
    return responses


async def back(stub: Any, method: str, last: Any, **call: Any) -> list[Any]:
    request = pb.ResumeRequest(stream_id=last.stream_id, last_sequence=last.sequence)
    return [response async for response in getattr(stub, f"Resume{method}")(request, **call)]


def shape_of(responses: list[Any]) -> list[Any]:
    """Without what differs from run to run."""
    copies = []
    for response in responses:
        copies.append(type(response).FromString(response.SerializeToString()))
        copies[-1].request_id = copies[-1].stream_id = ""
    return copies


def reason_of(error: grpc.aio.AioRpcError) -> str:
    metadata = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in status.details)
    return str(info.reason)


@pytest.mark.parametrize("method", METHODS)
async def test_a_stream_broken_at_any_response_goes_on_as_if_it_had_not_been(method: str) -> None:
    async with (
        serving(Script(tokens=tokens_of(TEXT), ends_with_eos=True)) as gateway,
        stub_of(gateway) as stub,
    ):
        whole = [response async for response in getattr(stub, method)(request_for(method))]
        for num_responses in range(1, len(whole) + 1):
            first = await broken_after(stub, method, num_responses)
            responses = first + await back(stub, method, first[-1])

            assert [r.sequence for r in responses] == list(range(1, len(whole) + 1))
            assert len({r.stream_id for r in responses}) == 1
            assert shape_of(responses) == shape_of(whole)

    assert len(gateway.dispatcher.generations) == 1 + len(whole)
    assert whole[-1].HasField("usage") and whole[-1].HasField("receipt")


async def test_other_streams_carry_no_id_and_stop_with_their_call() -> None:
    async with (
        serving(Script(tokens=tokens_of(TEXT), stalls_after=2)) as gateway,
        stub_of(gateway) as stub,
    ):
        (first,) = await broken_after(stub, "Generate", 1, resumable=False)
        await soon(gateway.dispatcher.stopped)

    assert (first.stream_id, first.sequence) == ("", 0)


async def test_a_client_that_wants_no_more_says_so() -> None:
    async with (
        serving(Script(tokens=tokens_of(TEXT), stalls_after=2)) as gateway,
        stub_of(gateway) as stub,
    ):
        (first,) = await broken_after(stub, "Generate", 1)
        assert gateway.dispatcher.stops == []
        ending = pb.EndStreamRequest(stream_id=first.stream_id)
        await stub.EndStream(ending)
        await soon(gateway.dispatcher.stopped)
        await stub.EndStream(ending)  # safe to repeat

        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await back(stub, "Generate", first)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_nobody_ends_the_stream_of_another_key() -> None:
    script = Script(tokens=tokens_of(TEXT), stalls_after=2)
    async with (
        serving(script, api_keys=frozenset({"alice", "bob"})) as gateway,
        stub_of(gateway) as stub,
    ):
        alice, bob = ((("authorization", f"Bearer {key}"),) for key in ("alice", "bob"))
        call = stub.Generate(request_for("Generate"), metadata=alice)
        first = await call.read()
        call.cancel()

        foreign, unknown = [
            await stub.EndStream(pb.EndStreamRequest(stream_id=stream_id), metadata=bob)
            for stream_id in (first.stream_id, "unknown")
        ]
        resumed = stub.ResumeGenerate(
            pb.ResumeRequest(stream_id=first.stream_id, last_sequence=1), metadata=alice
        )
        following = await resumed.read()

        assert foreign == unknown == pb.EndStreamResponse()
        assert following.sequence == 2
        assert gateway.dispatcher.stops == []


@pytest.mark.parametrize("whose", ["another key", "another method", "another id"])
async def test_what_a_caller_may_not_read_is_not_found(whose: str) -> None:
    keys = frozenset({"alice", "bob"})
    async with (
        serving(Script(tokens=tokens_of(TEXT)), api_keys=keys) as gateway,
        stub_of(gateway) as stub,
    ):
        alice, bob = ({"metadata": (("authorization", f"Bearer {k}"),)} for k in ("alice", "bob"))
        call = stub.Generate(request_for("Generate"), **alice)
        first = await call.read()
        call.cancel()
        if whose == "another id":
            first.stream_id = "unknown"
        method = "Chat" if whose == "another method" else "Generate"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await back(stub, method, first, **(bob if whose == "another key" else alice))

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert reason_of(caught.value) == "STREAM_NOT_FOUND"


async def test_a_response_that_was_never_sent_is_the_callers_mistake() -> None:
    async with (
        serving(Script(tokens=tokens_of(TEXT), stalls_after=1)) as gateway,
        stub_of(gateway) as stub,
    ):
        (first,) = await broken_after(stub, "Generate", 1)
        first.sequence = 99
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await back(stub, "Generate", first)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_errors_in_mid_stream_are_raised_again() -> None:
    script = Script(tokens=tokens_of(TEXT), error=Unavailable("gone"), num_before=2)
    async with serving(script) as gateway, stub_of(gateway) as stub:
        (first,) = await broken_after(stub, "Generate", 1)
        with pytest.raises(grpc.aio.AioRpcError, match="gone") as caught:
            await back(stub, "Generate", first)

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_errors_before_the_first_response_keep_nothing() -> None:
    async with serving(Script(start_error=Overloaded("full"))) as gateway, stub_of(gateway) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [response async for response in stub.Generate(request_for("Generate"))]

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_stream_that_nobody_comes_back_for_is_stopped() -> None:
    script = Script(tokens=tokens_of(TEXT), stalls_after=2)
    async with serving(script, resume_window_s=0.01) as gateway, stub_of(gateway) as stub:
        await broken_after(stub, "Generate", 2)
        await soon(gateway.dispatcher.stopped)

    assert gateway.dispatcher.stops == [2]
