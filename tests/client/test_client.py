"""Both clients against a server that answers as scripted."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import pytest
from tests.client.both_clients import KINDS, client_of
from tests.client.fake_server import (
    Step,
    answering,
    bad_field,
    failing,
    fake_server,
    last_response,
    numbered,
    reason,
    receipt,
    response,
    retry_after,
    usage,
)

from baton.client import errors
from baton.client.retry import Attempts, RetryPolicy
from baton.core.clock import ManualClock
from baton.proto import inference_pb2 as pb

QUICK = RetryPolicy(max_attempts=3, first_delay_s=0.001, max_delay_s=0.002)

pytestmark = pytest.mark.parametrize("kind", KINDS)


def chat_response(**fields: Any) -> pb.ChatResponse:
    return pb.ChatResponse(request_id="r", model="m", **fields)


async def test_a_generation_is_returned_in_one_piece(kind: str) -> None:
    steps = answering(response("Hel"), response("lo"), last_response("!"))
    with fake_server(steps) as (_, target):
        async with client_of(kind, target) as client:
            result = await client.generate("x")

    assert result.text == "Hello!"
    assert (result.request_id, result.model, result.finish_reason) == ("r", "m", "length")
    assert (result.usage.cached_tokens, result.usage.output_tokens) == (2, 4)
    assert (result.receipt.decode_replica, result.receipt.notes) == ("d0", ("smooth",))


async def test_interleaved_choices_are_told_apart(kind: str) -> None:
    end = {"finish_reason": "stop", "receipt": receipt()}
    steps = answering(
        response("a", index=0),
        response("x", index=1, token_ids=[7]),
        response("b", index=0, **end),
        response("y", index=1, token_ids=[8], usage=usage(), **end),
    )
    with fake_server(steps) as (_, target):
        async with client_of(kind, target) as client:
            result = await client.generate(["p", "q"], n=1)

    assert [(choice.index, choice.text) for choice in result.choices] == [(0, "ab"), (1, "xy")]
    assert result.choices[1].token_ids == (7, 8)


async def test_a_chat_is_put_together_from_its_deltas(kind: str) -> None:
    calls = [
        pb.ToolCallDelta(index=0, id="call-0", name="add"),
        pb.ToolCallDelta(index=0, arguments='{"a":'),
        pb.ToolCallDelta(index=1, id="call-1", name="now"),
        pb.ToolCallDelta(index=0, arguments=" 1}"),
    ]
    steps = answering(
        chat_response(reasoning="hm"),
        chat_response(content="Let me see."),
        chat_response(tool_calls=calls[:2]),
        chat_response(tool_calls=calls[2:]),
        chat_response(finish_reason="tool_calls", receipt=receipt(), usage=usage()),
    )
    with fake_server(steps) as (_, target):
        async with client_of(kind, target) as client:
            result = await client.chat([{"role": "user", "content": "1 + 2?"}])

    assert (result.text, result.reasoning) == ("Let me see.", "hm")
    assert result.finish_reason == "tool_calls"
    add, now = result.tool_calls
    assert (add.id, add.name, add.parse()) == ("call-0", "add", {"a": 1})
    assert (now.id, now.name, now.parse()) == ("call-1", "now", {})


async def test_an_answer_can_be_part_of_the_next_question(kind: str) -> None:
    call = pb.ToolCallDelta(index=0, id="call-0", name="add", arguments="{}")
    end = {"finish_reason": "stop", "receipt": receipt(), "usage": usage()}
    steps = [answering(chat_response(content="x", tool_calls=[call], **end))] * 2
    with fake_server(*steps) as (service, target):
        async with client_of(kind, target) as client:
            first = await client.chat([{"role": "user", "content": "hi"}])
            answer = {"role": "tool", "tool_call_id": "call-0", "content": "3"}
            await client.chat([first.message, answer])

    said, returned = service.requests[1].messages
    assert (said.role, said.content, said.tool_calls[0].name) == ("assistant", "x", "add")
    assert (returned.role, returned.tool_call_id) == ("tool", "call-0")


async def test_a_stream_yields_as_the_server_does(kind: str) -> None:
    steps = answering(response("Hel"), response("lo"), last_response())
    with fake_server(steps) as (_, target):
        async with client_of(kind, target) as client, client.stream("x") as stream:
            deltas = [delta async for delta in stream]

    assert [delta.text for delta in deltas] == ["Hel", "lo", ""]
    assert [delta.finish_reason for delta in deltas] == [None, None, "length"]
    assert [delta.usage is None for delta in deltas] == [True, True, False]


async def test_small_calls_return_values(kind: str) -> None:
    embedding = pb.Embedding(values=[0.5, 1.0])
    steps = [
        answering(pb.TokenizeResponse(ids=[1, 2], tokens=[b"a", b"\xff"], max_model_len=9)),
        answering(pb.DetokenizeResponse(text="ab")),
        answering(pb.EmbedResponse(embeddings=[embedding, embedding], usage=usage())),
        answering(pb.ListModelsResponse(models=[pb.Model(id="m", created=3, max_model_len=9)])),
    ]
    with fake_server(*steps) as (service, target):
        async with client_of(kind, target) as client:
            tokens = await client.tokenize("ab", add_special_tokens=False)
            text = await client.detokenize([1, 2])
            vectors = await client.embed(["a", [1, 2]], pooling="last", normalize=False)
            (model,) = await client.models()

    assert (tokens.ids, tokens.tokens, tokens.max_model_len) == ((1, 2), (b"a", b"\xff"), 9)
    assert text == "ab"
    assert vectors.embeddings == ((0.5, 1.0), (0.5, 1.0))
    assert (vectors.embedding, vectors.usage.prompt_tokens) == ((0.5, 1.0), 3)
    assert (model.id, model.created, model.max_model_len) == ("m", 3, 9)
    embed = service.requests[2]
    assert embed.pooling == pb.POOLING_LAST and embed.HasField("normalize")


async def test_leaving_a_stream_cancels_it(kind: str) -> None:
    def endless(context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        yield response("first")
        while context.is_active():
            threading.Event().wait(0.01)

    with fake_server(endless) as (service, target):
        async with client_of(kind, target) as client:
            async with client.stream("x") as stream:
                assert (await anext(stream)).text == "first"
            assert service.ended.wait(120)
            assert [delta async for delta in stream] == []

    assert service.ended_streams == []


async def test_leaving_a_resumable_stream_ends_it_on_the_server(kind: str) -> None:
    def endless(context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        yield from numbered(1, response("first"))
        while context.is_active():
            threading.Event().wait(0.01)

    with fake_server(endless) as (service, target):
        async with client_of(kind, target) as client, client.stream("x") as stream:
            await anext(stream)

    assert service.ended_streams == ["s"]


@pytest.mark.parametrize(
    "failure",
    [
        failing(grpc.StatusCode.UNAVAILABLE),
        failing(grpc.StatusCode.RESOURCE_EXHAUSTED, details=(retry_after(1), reason("OVERLOADED"))),
    ],
)
async def test_passing_failures_before_any_output_are_retried(kind: str, failure: Step) -> None:
    with fake_server(failure, failure, answering(last_response("ok"))) as (service, target):
        async with client_of(kind, target, retry=QUICK) as client:
            assert (await client.generate("x")).text == "ok"

    assert service.methods == ["Generate"] * 3


async def test_small_calls_are_retried_as_well(kind: str) -> None:
    failure = failing(grpc.StatusCode.UNAVAILABLE)
    with fake_server(failure, answering(pb.DetokenizeResponse(text="ok"))) as (service, target):
        async with client_of(kind, target, retry=QUICK) as client:
            assert await client.detokenize([1]) == "ok"

    assert service.methods == ["Detokenize"] * 2


async def test_retries_are_bounded(kind: str) -> None:
    failures = [failing(grpc.StatusCode.UNAVAILABLE)] * 5
    with fake_server(*failures) as (service, target):
        async with client_of(kind, target, retry=QUICK) as client:
            with pytest.raises(errors.Unavailable):
                await client.generate("x")

    assert len(service.requests) == 3


async def test_a_stream_that_is_not_resumable_is_not_repeated_once_it_has_begun(kind: str) -> None:
    broken = failing(grpc.StatusCode.UNAVAILABLE, response("Hel"))
    with fake_server(broken) as (service, target):
        async with client_of(kind, target, retry=QUICK) as client:
            stream = client.stream("x", resumable=False)
            assert (await anext(stream)).text == "Hel"
            with pytest.raises(errors.Unavailable):
                await anext(stream)
            assert [delta async for delta in stream] == []

    assert len(service.requests) == 1
    assert not service.requests[0].resumable


@pytest.mark.parametrize("method", ["Generate", "Chat"])
async def test_a_broken_stream_is_taken_up_where_it_broke(kind: str, method: str) -> None:
    if method == "Generate":
        parts: list[Any] = [response("a"), response("b"), last_response("c")]
    else:
        end = {"finish_reason": "stop", "receipt": receipt(), "usage": usage()}
        parts = [chat_response(content="a"), chat_response(content="b")]
        parts.append(chat_response(content="c", **end))
    parts = numbered(1, *parts)
    steps = [
        failing(grpc.StatusCode.UNAVAILABLE, *parts[:1]),
        failing(grpc.StatusCode.UNAVAILABLE, *parts[1:2]),
        failing(grpc.StatusCode.UNAVAILABLE),
        answering(*parts[2:]),
    ]
    with fake_server(*steps) as (service, target):
        async with client_of(kind, target, retry=QUICK) as client:
            if method == "Generate":
                result = await client.generate("x")
            else:
                result = await client.chat([{"role": "user", "content": "x"}])

    assert result.text == "abc"
    assert service.methods == [method] + [f"Resume{method}"] * 3
    assert service.requests[0].resumable
    assert [request.last_sequence for request in service.requests[1:]] == [1, 2, 2]
    assert {request.stream_id for request in service.requests[1:]} == {"s"}
    assert service.ended_streams == []


async def test_what_the_server_says_in_mid_stream_is_not_asked_again(kind: str) -> None:
    parts = numbered(1, response("a"))
    gone = failing(grpc.StatusCode.UNAVAILABLE, *parts, details=(reason("UNAVAILABLE"),))
    with fake_server(gone) as (service, target):
        async with client_of(kind, target, retry=QUICK) as client:
            with pytest.raises(errors.Unavailable):
                await client.generate("x")

    assert service.methods == ["Generate"]


async def test_a_stream_that_went_with_its_gateway_is_unavailable(kind: str) -> None:
    steps = [
        failing(grpc.StatusCode.UNAVAILABLE, *numbered(1, response("a"))),
        failing(grpc.StatusCode.NOT_FOUND, details=(reason("STREAM_NOT_FOUND"),)),
    ]
    with fake_server(*steps) as (_, target):
        async with client_of(kind, target, retry=QUICK) as client:
            with pytest.raises(errors.Unavailable) as caught:
                await client.generate("x")

    assert isinstance(caught.value.__cause__, errors.StreamNotFound)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidRequest),
        (grpc.StatusCode.NOT_FOUND, errors.ModelNotFound),
        (grpc.StatusCode.PERMISSION_DENIED, errors.Forbidden),
        (grpc.StatusCode.UNAUTHENTICATED, errors.Unauthenticated),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.Overloaded),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (grpc.StatusCode.CANCELLED, errors.RequestCancelled),
        (grpc.StatusCode.INTERNAL, errors.ServerFailed),
    ],
)
async def test_lasting_failures_are_typed_and_not_retried(
    kind: str, code: grpc.StatusCode, expected: type[errors.BatonClientError]
) -> None:
    failure = failing(code, details=(bad_field("sampling.top_p"), reason("SOME_REASON")))
    with fake_server(failure) as (service, target):
        async with client_of(kind, target, retry=QUICK) as client:
            with pytest.raises(expected) as caught:
                await client.generate("x")

    assert len(service.requests) == 1
    assert (caught.value.code, caught.value.reason) == (code, "SOME_REASON")
    assert caught.value.message == str(caught.value) == "as scripted"
    sent = pickle.loads(pickle.dumps(caught.value))  # to who waits in another process
    assert (type(sent), vars(sent)) == (expected, vars(caught.value))
    if isinstance(caught.value, errors.InvalidRequest):
        assert caught.value.field == "sampling.top_p"


async def test_the_deadline_covers_all_attempts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt takes 1,000 s by the client's clock. gRPC has its own, which may be seconds off
    on a busy machine."""
    clock = ManualClock()
    for module in ("stream", "async_stream"):
        monkeypatch.setattr(f"baton.client.{module}.Attempts", partial(Attempts, clock=clock))
    fail = failing(grpc.StatusCode.UNAVAILABLE)

    def fail_late(context: grpc.ServicerContext) -> Iterator[Any]:
        clock.advance(1000)
        yield from fail(context)

    patient = RetryPolicy(max_attempts=9, first_delay_s=0.001, max_delay_s=0.002)
    with fake_server(*[fail_late] * 9) as (service, target):
        async with client_of(kind, target, retry=patient) as client:
            with pytest.raises(errors.DeadlineExceeded):
                await client.generate("x", timeout_s=2500)

    assert service.times_left_s == pytest.approx([2500, 1500, 500], abs=400)


@pytest.mark.parametrize("timeout_s", [float("inf"), float("nan"), -1, 0])
async def test_what_is_no_time_limit_is_refused(kind: str, timeout_s: float) -> None:
    async with client_of(kind, "127.0.0.1:1") as client:
        with pytest.raises(errors.InvalidRequest) as caught:
            await client.generate("x", timeout_s=timeout_s)

    assert caught.value.field == "timeout_s"


async def test_a_time_limit_may_be_as_good_as_none(kind: str) -> None:
    with fake_server(answering(last_response("a"))) as (_, target):
        async with client_of(kind, target) as client:
            assert (await client.generate("x", timeout_s=1e12)).text == "a"


async def test_a_server_that_is_not_there_is_unavailable(kind: str) -> None:
    async with client_of(kind, "127.0.0.1:1", retry=QUICK) as client:
        for call in (client.generate("x"), client.models(), client.health()):
            with pytest.raises(errors.Unavailable):
                await call


async def test_a_stream_without_an_end_is_a_fault_of_the_server(kind: str) -> None:
    with fake_server(answering(response("Hel"))) as (_, target):
        async with client_of(kind, target) as client:
            with pytest.raises(errors.ServerFailed):
                await client.generate("x")


async def test_the_key_goes_with_every_call(kind: str) -> None:
    steps = [
        failing(grpc.StatusCode.UNAVAILABLE, *numbered(1, response("a"))),
        answering(*numbered(2, last_response())),
        answering(pb.ListModelsResponse()),
    ]
    with fake_server(*steps) as (service, target):
        async with client_of(kind, target, api_key="secret", retry=QUICK) as client:
            await client.generate("x")
            await client.models()

    assert [metadata["authorization"] for metadata in service.metadata] == ["Bearer secret"] * 3
