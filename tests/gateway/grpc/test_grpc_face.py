"""`baton.v1.Inference` over a real channel, with health checks and reflection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2
from google.rpc import error_details_pb2 as details_pb
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.gateway.scripted import (
    ASSISTANT,
    BOS,
    MODEL,
    USER,
    Script,
    ScriptedDispatcher,
    Serving,
    make_model,
    serving,
    soon,
    text_tokenizer,
    tokens_of,
)

from baton.core.errors import DeadlineExceeded, InvalidRequest, Overloaded, Unavailable
from baton.gateway.access.cache_salt import CacheSalts
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

if TYPE_CHECKING:
    from baton.proto.inference_pb2_grpc import InferenceAsyncStub

FOX = "the quick brown fox — 日本"


@asynccontextmanager
async def channel_to(gateway: Serving) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(gateway.grpc_target) as channel:
        yield channel


@asynccontextmanager
async def stub_of(gateway: Serving) -> AsyncIterator[InferenceAsyncStub]:
    async with channel_to(gateway) as channel:
        yield InferenceStub(channel)


async def generate(
    gateway: Serving, request: pb.GenerateRequest, **call: Any
) -> list[pb.GenerateResponse]:
    async with stub_of(gateway) as stub:
        return [response async for response in stub.Generate(request, **call)]


async def failure(
    gateway: Serving, request: pb.GenerateRequest, **call: Any
) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(gateway, request, **call)
    return caught.value


async def chat(gateway: Serving, request: pb.ChatRequest, **call: Any) -> list[pb.ChatResponse]:
    async with stub_of(gateway) as stub:
        return [response async for response in stub.Chat(request, **call)]


def saying(text: str, role: str = "user") -> pb.ChatRequest:
    return pb.ChatRequest(messages=[pb.ChatMessage(role=role, content=text)])


D = TypeVar("D", details_pb.BadRequest, details_pb.RetryInfo, details_pb.ErrorInfo)


def detail_of(error: grpc.aio.AioRpcError, kind: type[D]) -> D | None:
    """Of the google.rpc.Status beside the code, which says the same."""
    metadata = {key: value for key, value in error.trailing_metadata()}
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.code().value[0], error.details())
    for packed in status.details:
        detail = kind()
        if packed.Unpack(detail):
            return detail
    return None


def field_of(error: grpc.aio.AioRpcError) -> str | None:
    request = detail_of(error, details_pb.BadRequest)
    return None if request is None else request.field_violations[0].field


async def test_text_is_continued() -> None:
    async with serving(Script(tokens=tokens_of(FOX), ends_with_eos=True, num_cached=1)) as gateway:
        responses = await generate(gateway, pb.GenerateRequest(text="Hello", request_id="mine"))

    *_, last = responses
    assert "".join(response.text for response in responses) == FOX
    assert {response.request_id for response in responses} == {"mine"}
    assert {response.model for response in responses} == {MODEL}
    assert last.finish_reason == "stop"
    assert last.usage.output_tokens == len(tokens_of(FOX)) + 1
    assert last.usage.cached_tokens == 1
    assert last.receipt.decode_replica == "d0"
    assert list(last.receipt.notes) == ["stopped"]
    assert not any(response.HasField("usage") for response in responses[:-1])


async def test_tokens_and_chats_are_prompts_too() -> None:
    conversation = saying("Hello")
    conversation.cache_salt = "tenant"
    async with serving() as gateway:
        await generate(gateway, pb.GenerateRequest(tokens=pb.TokenIds(ids=[5, 6])))
        responses = await chat(gateway, conversation)

    by_tokens, by_chat = gateway.dispatcher.generations
    rendered = f"{BOS}{USER}Hello{ASSISTANT}"
    assert by_tokens.prompt == (5, 6)
    assert by_chat.prompt == text_tokenizer().encode(rendered, add_special_tokens=False)
    assert by_chat.salt == CacheSalts("").salt("", "tenant")
    assert "".join(response.content for response in responses) == "Hello"
    assert responses[-1].finish_reason == "length"


async def test_options_reach_the_dispatcher_and_zero_is_not_left_out() -> None:
    sampling = pb.SamplingOptions(
        temperature=0, top_k=4, max_tokens=8, min_tokens=0, stop_token_ids=[9], seed=2**64 - 1,
        ignore_eos=True, logprobs=0,
    )  # fmt: skip
    async with serving() as gateway:
        await generate(gateway, pb.GenerateRequest(text="Hello", sampling=sampling))
        await generate(gateway, pb.GenerateRequest(text="Hello"))

    given, default = (generation.sampling for generation in gateway.dispatcher.generations)
    assert (given.temperature, given.top_k, given.max_tokens) == (0, 4, 8)
    assert (given.stop_token_ids, given.ignore_eos, given.seed) == ((9,), True, 2**64 - 1)
    assert (given.num_logprobs, default.num_logprobs) == (0, None)
    assert default.temperature == 1
    assert default.max_tokens == 100 - len(tokens_of("Hello")) - 1


async def test_token_ids_and_logprobs_come_when_asked_for() -> None:
    tokens = tokens_of("€")
    request = pb.GenerateRequest(
        text="x", return_token_ids=True, sampling=pb.SamplingOptions(logprobs=2)
    )
    async with serving(Script(tokens=tokens)) as gateway:
        responses = await generate(gateway, request)
        plain = await generate(gateway, pb.GenerateRequest(text="x"))

    entries = [entry for response in responses for entry in response.logprobs]
    assert [token for response in responses for token in response.token_ids] == tokens
    assert b"".join(entry.token for entry in entries) == "€".encode()
    assert [len(entry.top) for entry in entries] == [2] * len(tokens)
    assert [response.text for response in plain] == ["€"], "nothing is sent when nothing is new"
    assert not plain[0].token_ids


async def test_a_stop_string_ends_the_generation() -> None:
    request = pb.GenerateRequest(text="x", sampling=pb.SamplingOptions(stop=["brown"]))
    async with serving(Script(tokens=tokens_of(FOX))) as gateway:
        responses = await generate(gateway, request)

    assert "".join(response.text for response in responses) == "the quick "
    assert responses[-1].finish_reason == "stop"
    assert gateway.dispatcher.stops == [responses[-1].usage.output_tokens]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.GenerateRequest(), "prompt"),
        (pb.GenerateRequest(text=""), "text"),
        (pb.GenerateRequest(tokens=pb.TokenIds()), "tokens.ids"),
        (pb.GenerateRequest(tokens=pb.TokenIds(ids=[1, 10**6])), "tokens.ids[1]"),
        (pb.GenerateRequest(prompts=pb.Prompts()), "prompts.prompts"),
        (pb.GenerateRequest(prompts=pb.Prompts(prompts=[pb.Prompt()])), "prompts.prompts[0]"),
        (
            pb.GenerateRequest(text="x", sampling=pb.SamplingOptions(temperature=float("nan"))),
            "sampling.temperature",
        ),
        (
            pb.GenerateRequest(text="x", sampling=pb.SamplingOptions(logprobs=50)),
            "sampling.logprobs",
        ),
        (
            pb.GenerateRequest(text="x", sampling=pb.SamplingOptions(stop=["a", ""])),
            "sampling.stop[1]",
        ),
        (
            pb.GenerateRequest(text="x", sampling=pb.SamplingOptions(max_tokens=1000)),
            "sampling.max_tokens",
        ),
        (pb.GenerateRequest(text="x", request_id="a b"), "request_id"),
    ],
)
async def test_a_bad_field_is_named(request_: pb.GenerateRequest, field: str) -> None:
    async with serving() as gateway:
        error = await failure(gateway, request_)

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field_of(error) == field
    assert gateway.dispatcher.generations == []


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (Unavailable("away"), grpc.StatusCode.UNAVAILABLE),
        (DeadlineExceeded("late"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (InvalidRequest("no"), grpc.StatusCode.INVALID_ARGUMENT),
        (RuntimeError("secret"), grpc.StatusCode.INTERNAL),
    ],
)
async def test_failures_have_their_codes(raised: Exception, code: grpc.StatusCode) -> None:
    async with serving(Script(start_error=raised)) as gateway:
        error = await failure(gateway, pb.GenerateRequest(text="x"))

    assert error.code() is code
    assert "secret" not in (error.details() or "")


async def test_overload_tells_when_to_return() -> None:
    async with serving(Script(start_error=Overloaded("full", retry_after_s=1.5))) as gateway:
        error = await failure(gateway, pb.GenerateRequest(text="x"))

    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    retry = detail_of(error, details_pb.RetryInfo)
    assert retry is not None and retry.retry_delay.ToMilliseconds() == 1500


async def test_an_unknown_model_is_not_found() -> None:
    async with serving() as gateway:
        error = await failure(gateway, pb.GenerateRequest(text="x", model="gpt-9"))

    assert error.code() is grpc.StatusCode.NOT_FOUND


async def test_a_failure_is_told_however_long_the_value_is_that_it_quotes() -> None:
    async with serving() as gateway:
        error = await failure(gateway, pb.GenerateRequest(text="x", model="日" * 100_000))

    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert str(error.details()).startswith("the model `日日")
    info = detail_of(error, details_pb.ErrorInfo)
    assert info is not None and (info.reason, info.domain) == ("MODEL_NOT_FOUND", "baton")


@pytest.mark.parametrize("method", ["Generate", "Chat", "Embed", "ListModels"])
async def test_bytes_that_are_no_message_are_the_callers_mistake(method: str) -> None:
    async with serving() as gateway, channel_to(gateway) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        call = channel.unary_unary(f"/baton.v1.Inference/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff\xff")

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "DecodeError" not in str(caught.value.details())


async def test_a_text_far_too_long_names_its_field() -> None:
    async with serving() as gateway:
        by_text = await failure(gateway, pb.GenerateRequest(text="word " * 20_000))
        with pytest.raises(grpc.aio.AioRpcError) as by_chat:
            await chat(gateway, saying("word " * 20_000))

    assert by_text.code() is by_chat.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (field_of(by_text), field_of(by_chat.value)) == ("text", "messages")


async def test_a_model_without_a_template_refuses_chats() -> None:
    async with serving(model=make_model(template=None)) as gateway:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await chat(gateway, saying("hi"))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_client_that_cancels_stops_its_generation() -> None:
    script = Script(tokens=tokens_of(FOX), stalls_after=2)
    async with serving(script) as gateway, stub_of(gateway) as stub:
        call = stub.Generate(pb.GenerateRequest(text="x"))
        await anext(aiter(call))
        call.cancel()
        await soon(gateway.dispatcher.stopped)

    [num_tokens] = gateway.dispatcher.stops
    assert num_tokens in (1, 2)  # the second may have been on its way


async def test_the_callers_deadline_reaches_the_dispatcher_and_ends_the_generation() -> None:
    async with serving(Script(stalls_after=0)) as gateway:
        timeout_s = 0.1
        while not gateway.dispatcher.generations:  # a busy machine may not have begun by then
            timeout_s *= 2
            error = await failure(gateway, pb.GenerateRequest(text="x"), timeout=timeout_s)
        await soon(gateway.dispatcher.stopped)

    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    (generation,) = gateway.dispatcher.generations
    assert generation.time_left_s is not None and 0 < generation.time_left_s <= timeout_s


async def test_keys_are_asked_for_and_who_has_none_is_logged_by_an_id_of_sane_length(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    key = (("authorization", "Bearer key"),)
    async with serving(api_keys=frozenset({"key"})) as gateway:
        for given in ("mine", "x" * 5000):
            asked = pb.GenerateRequest(text="x")
            error = await failure(gateway, asked, metadata=(("x-request-id", given),))
        responses = await generate(gateway, pb.GenerateRequest(text="x"), metadata=key)
        async with stub_of(gateway) as stub:
            with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                await stub.ListModels(pb.ListModelsRequest())

    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert responses
    refused = [record for record in caplog.records if record.message == "refused"]
    assert [vars(record)["request_id"] for record in refused] == ["mine", "", ""]


async def test_models_are_listed() -> None:
    async with serving() as gateway, stub_of(gateway) as stub:
        answer = await stub.ListModels(pb.ListModelsRequest())

    assert [(model.id, model.max_model_len) for model in answer.models] == [(MODEL, 100)]


@pytest.mark.parametrize("service", ["", "baton.v1.Inference"])
async def test_health_follows_readiness(service: str) -> None:
    dispatcher = ScriptedDispatcher(ready=False)
    serving_status = health_pb2.HealthCheckResponse.ServingStatus
    async with serving(dispatcher=dispatcher) as gateway, channel_to(gateway) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = aiter(stub.Watch(health_pb2.HealthCheckRequest(service=service)))
        async with asyncio.timeout(120):
            states = [(await anext(watch)).status]
            dispatcher.ready = True
            states.append((await anext(watch)).status)
            await gateway.server.begin_drain()
            states.append((await anext(watch)).status)

    expected = [serving_status.NOT_SERVING, serving_status.SERVING, serving_status.NOT_SERVING]
    assert states == expected


async def test_reflection_describes_the_service() -> None:
    ask = reflection_pb2.ServerReflectionRequest
    requests = [ask(list_services=""), ask(file_containing_symbol="baton.v1.Inference")]
    async with serving() as gateway, channel_to(gateway) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        listed, described = [a async for a in stub.ServerReflectionInfo(iter(requests))]

    names = {service.name for service in listed.list_services_response.service}
    file = descriptor_pb2.FileDescriptorProto()
    file.ParseFromString(described.file_descriptor_response.file_descriptor_proto[0])
    assert {"baton.v1.Inference", "grpc.health.v1.Health"} <= names
    methods = [method.name for method in file.service[0].method]
    assert methods == list(pb.DESCRIPTOR.services_by_name["Inference"].methods_by_name)


async def test_a_client_that_does_not_read_is_cut_off_and_its_request_freed() -> None:
    dispatcher = ScriptedDispatcher(Script(tokens=[5] * 9000), max_model_len=10_000)
    small = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024))
    request = pb.GenerateRequest(text="Hi", sampling=pb.SamplingOptions(logprobs=9))
    async with (
        serving(dispatcher=dispatcher, unread_timeout_s=0.1, min_body_bytes_per_s=1e9) as gateway,
        grpc.aio.insecure_channel(gateway.grpc_target, small) as channel,
    ):
        call = InferenceStub(channel).Generate(request)
        await soon(dispatcher.stopped)
        with pytest.raises(grpc.aio.AioRpcError, match="has read too little for"):
            while await call.read() is not grpc.aio.EOF:
                pass
        page = gateway.server.metrics_page()

    assert dispatcher.stops[0] < 9000
    assert 'reason="unread answer"} 1\n' in page


async def test_one_connection_too_many_is_closed() -> None:
    async with serving(max_connections=1) as gateway:
        target, apart = gateway.grpc_target, (("grpc.use_local_subchannel_pool", 1),)
        first, second = (grpc.aio.insecure_channel(target, apart) for _ in range(2))
        async with first, second:
            await InferenceStub(first).ListModels(pb.ListModelsRequest())
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await InferenceStub(second).ListModels(pb.ListModelsRequest(), timeout=60)

    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_what_clients_make_grpc_complain_of_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("grpc._cython.cygrpc")

    log.error("Invalid encoding on %r", b"\xff")
    log.error("ExecuteBatchError raised in core by servicer method [/baton.v1.Inference/Chat]")
    log.error("Unexpected [KeyError] raised by servicer method [/baton.v1.Inference/Chat]")

    assert [record.getMessage().split()[0] for record in caplog.records] == ["Unexpected"]
