"""The SDK against a real gRPC server whose answers are scripted, and against a real gateway."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc
import pytest
from tests.gateway.scripted import MODEL, Script, serving, tokens_of

from baton.client import errors
from baton.client.client import BatonClient
from baton.client.retry import RetryPolicy
from baton.core.errors import Overloaded
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceServicer, add_InferenceServicer_to_server

QUICK = RetryPolicy(max_attempts=3, first_delay_s=0.001, max_delay_s=0.002)

Step = Callable[[grpc.ServicerContext], Iterator[pb.GenerateResponse]]


def response(text: str) -> pb.GenerateResponse:
    return pb.GenerateResponse(request_id="r", model="m", text=text)


def last_response(text: str = "") -> pb.GenerateResponse:
    usage = pb.Usage(prompt_tokens=3, cached_tokens=2, output_tokens=4)
    receipt = pb.Receipt(decode_replica="d0", attempts=1, notes=["smooth"])
    return pb.GenerateResponse(
        request_id="r", model="m", text=text, finish_reason="length", usage=usage, receipt=receipt
    )


def answering(*responses: pb.GenerateResponse) -> Step:
    return lambda context: iter(responses)


def failing(code: grpc.StatusCode, *before: pb.GenerateResponse, **metadata: str) -> Step:
    def step(context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        yield from before
        context.set_trailing_metadata(
            tuple((key.replace("_", "-"), value) for key, value in metadata.items())
        )
        context.abort(code, "as scripted")

    return step


@dataclass
class FakeService(InferenceServicer):
    """Each call takes the next step."""

    steps: list[Step]
    requests: list[pb.GenerateRequest] = field(default_factory=list)
    times_left_s: list[float] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def Generate(self, request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateResponse]:
        context.add_callback(self.ended.set)
        self.requests.append(request)
        self.times_left_s.append(context.time_remaining())
        yield from self.steps.pop(0)(context)

    def ListModels(self, request: pb.ListModelsRequest, context: Any) -> NoReturn:
        context.abort(grpc.StatusCode.INTERNAL, "broken")
        raise AssertionError("abort raises")


@contextmanager
def fake_server(*steps: Step) -> Iterator[tuple[FakeService, str]]:
    service = FakeService(list(steps))
    server = grpc.server(ThreadPoolExecutor(4))
    add_InferenceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield service, f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def test_a_generation_is_returned_in_one_piece() -> None:
    with (
        fake_server(answering(response("Hel"), response("lo"), last_response("!"))) as (_, target),
        BatonClient(target) as client,
    ):
        result = client.generate("x")

    assert result.text == "Hello!"
    assert (result.request_id, result.model, result.finish_reason) == ("r", "m", "length")
    assert (result.usage.cached_tokens, result.usage.output_tokens) == (2, 4)
    assert (result.receipt.decode_replica, result.receipt.notes) == ("d0", ("smooth",))


def test_options_are_sent_and_the_others_are_left_out() -> None:
    with (
        fake_server(answering(last_response()), answering(last_response())) as (service, target),
        BatonClient(target) as client,
    ):
        client.generate([1, 2], temperature=0, stop="END", seed=7, logprobs=0, request_id="mine")
        client.chat([{"role": "user", "content": "hi"}], return_token_ids=True, stop=["a", "b"])

    first, second = service.requests
    sampling = first.sampling
    assert list(first.tokens.ids) == [1, 2]
    assert (first.request_id, list(sampling.stop), sampling.seed) == ("mine", ["END"], 7)
    assert sampling.HasField("temperature") and sampling.HasField("logprobs")
    assert not sampling.HasField("top_p")
    assert second.chat.messages[0].content == "hi"
    assert second.return_token_ids
    assert list(second.sampling.stop) == ["a", "b"]


def test_unknown_options_are_refused_before_anything_is_sent() -> None:
    with BatonClient("127.0.0.1:1") as client, pytest.raises(TypeError, match="temprature"):
        client.generate("x", temprature=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        ("x", {"max_tokens": -1}, "sampling.max_tokens"),
        ("x", {"seed": 2**64}, "sampling.seed"),
        ("x", {"stop_token_ids": [-1]}, "sampling.stop_token_ids"),
        ("x", {"cache_salt": "\ud800"}, "cache_salt"),
        ("\ud800", {}, "text"),
        ([-1], {}, "tokens.ids"),
    ],
)
def test_values_that_cannot_be_sent_are_invalid(
    prompt: str | list[int], options: Any, field: str
) -> None:
    with BatonClient("127.0.0.1:1") as client, pytest.raises(errors.InvalidRequest) as caught:
        client.generate(prompt, **options)

    assert caught.value.field == field
    assert caught.value.message.startswith(field)


def test_a_message_of_a_chat_that_cannot_be_sent_is_named() -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "user", "content": "\ud800"}]

    with BatonClient("127.0.0.1:1") as client, pytest.raises(errors.InvalidRequest) as caught:
        client.chat(messages)

    assert caught.value.field == "chat.messages[1]"


def test_a_stream_yields_as_the_server_does() -> None:
    steps = answering(response("Hel"), response("lo"), last_response())
    with (
        fake_server(steps) as (_, target),
        BatonClient(target) as client,
        client.stream("x") as stream,
    ):
        deltas = list(stream)

    assert [delta.text for delta in deltas] == ["Hel", "lo", ""]
    assert [delta.finish_reason for delta in deltas] == [None, None, "length"]
    assert [delta.usage is None for delta in deltas] == [True, True, False]


def test_leaving_a_stream_cancels_it() -> None:
    def endless(context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        yield response("first")
        while context.is_active():
            threading.Event().wait(0.01)

    with fake_server(endless) as (service, target), BatonClient(target) as client:
        with client.stream("x") as stream:
            assert next(stream).text == "first"
        assert service.ended.wait(20)
        assert list(stream) == []


@pytest.mark.parametrize(
    "failure",
    [
        failing(grpc.StatusCode.UNAVAILABLE),
        failing(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after_ms="1"),
    ],
)
def test_passing_failures_before_any_output_are_retried(failure: Step) -> None:
    with (
        fake_server(failure, failure, answering(last_response("ok"))) as (service, target),
        BatonClient(target, retry=QUICK) as client,
    ):
        assert client.generate("x").text == "ok"

    assert len(service.requests) == 3


def test_retries_are_bounded() -> None:
    failures = [failing(grpc.StatusCode.UNAVAILABLE)] * 5
    with (
        fake_server(*failures) as (service, target),
        BatonClient(target, retry=QUICK) as client,
        pytest.raises(errors.Unavailable),
    ):
        client.generate("x")

    assert len(service.requests) == 3


def test_nothing_is_retried_once_something_was_yielded() -> None:
    broken = failing(grpc.StatusCode.UNAVAILABLE, response("Hel"))
    with fake_server(broken) as (service, target), BatonClient(target, retry=QUICK) as client:
        stream = client.stream("x")
        assert next(stream).text == "Hel"
        with pytest.raises(errors.Unavailable):
            next(stream)
        assert list(stream) == []

    assert len(service.requests) == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidRequest),
        (grpc.StatusCode.NOT_FOUND, errors.ModelNotFound),
        (grpc.StatusCode.UNAUTHENTICATED, errors.Unauthenticated),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.Overloaded),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (grpc.StatusCode.CANCELLED, errors.RequestCancelled),
        (grpc.StatusCode.INTERNAL, errors.ServerFailed),
    ],
)
def test_lasting_failures_are_typed_and_not_retried(
    code: grpc.StatusCode, kind: type[errors.BatonClientError]
) -> None:
    with (
        fake_server(failing(code, field="sampling.top_p")) as (service, target),
        BatonClient(target, retry=QUICK) as client,
        pytest.raises(kind) as caught,
    ):
        client.generate("x")

    assert len(service.requests) == 1
    assert caught.value.code is code
    assert caught.value.message == "as scripted"
    if isinstance(caught.value, errors.InvalidRequest):
        assert caught.value.field == "sampling.top_p"


def test_the_deadline_covers_all_attempts() -> None:
    failures = [failing(grpc.StatusCode.UNAVAILABLE)] * 9
    patient = RetryPolicy(max_attempts=9, first_delay_s=0.05, max_delay_s=0.05)
    with (
        fake_server(*failures) as (service, target),
        BatonClient(target, retry=patient) as client,
        pytest.raises(errors.BatonClientError),
    ):
        client.generate("x", timeout_s=5)

    assert len(service.times_left_s) == 9
    assert service.times_left_s[-1] < service.times_left_s[0]


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with BatonClient("127.0.0.1:1", retry=QUICK) as client:
        with pytest.raises(errors.Unavailable):
            client.generate("x")
        with pytest.raises(errors.Unavailable):
            client.models()
        with pytest.raises(errors.Unavailable):
            client.health()


def test_a_stream_without_an_end_is_a_fault_of_the_server() -> None:
    with (
        fake_server(answering(response("Hel"))) as (_, target),
        BatonClient(target) as client,
        pytest.raises(errors.ServerFailed),
    ):
        client.generate("x")


async def test_against_a_real_gateway() -> None:
    script = Script(tokens=tokens_of("the fox"), ends_with_eos=True)
    async with serving(script, api_keys=frozenset({"key"})) as gateway:

        def use() -> tuple[Any, ...]:
            with BatonClient(gateway.grpc_target, api_key="key") as client:
                result = client.generate("Hello", logprobs=1, return_token_ids=True)
                chat = "".join(
                    d.text for d in client.stream_chat([{"role": "user", "content": "x"}])
                )
                with pytest.raises(errors.InvalidRequest) as caught:
                    client.generate("Hello", top_p=2)
                return result, chat, caught.value.field, client.models(), client.health()

        result, chat, bad_field, models, is_healthy = await asyncio.to_thread(use)
        with pytest.raises(errors.Unauthenticated):
            await asyncio.to_thread(BatonClient(gateway.grpc_target).generate, "Hello")

    assert result.text == chat == "the fox"
    assert list(result.token_ids[:-1]) == tokens_of("the fox")
    assert len(result.logprobs) == len(result.token_ids)
    assert bad_field == "sampling.top_p"
    assert [model.id for model in models] == [MODEL]
    assert is_healthy


async def test_overload_of_a_real_gateway_keeps_its_advice() -> None:
    async with serving(Script(start_error=Overloaded("full", retry_after_s=0.001))) as gateway:
        client = BatonClient(gateway.grpc_target, retry=QUICK)
        with pytest.raises(errors.Overloaded) as caught:
            await asyncio.to_thread(client.generate, "Hello")

    assert caught.value.retry_after_s == 0.001
    assert len(gateway.dispatcher.generations) == 3
