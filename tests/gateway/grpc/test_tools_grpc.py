"""Chat over gRPC: tools, reasoning and structured output are those of HTTP."""

from __future__ import annotations

import json
import math
from typing import Any

import grpc.aio
import pytest
from google.protobuf.struct_pb2 import Struct, Value
from google.rpc import error_details_pb2, status_pb2
from tests.gateway.chat_models import (
    HERMES,
    PARIS,
    PLAIN,
    THINKING,
    WEATHER,
    call_text,
    chat_model,
    dispatcher,
    said,
)
from tests.gateway.scripted import Serving, serving, text_of, tokens_of

from baton.core.sampling import GrammarKind
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

FUNCTION = WEATHER["function"]
TOOL = pb.Tool(
    name="get_weather",
    description=FUNCTION["description"],
    parameters=json.dumps(FUNCTION["parameters"]),
)
ASKED = pb.ChatMessage(role="user", content="Weather in Paris?")


async def chat(gateway: Serving, request: pb.ChatRequest) -> list[pb.ChatResponse]:
    async with grpc.aio.insecure_channel(gateway.grpc_target) as channel:
        return [response async for response in InferenceStub(channel).Chat(request)]


def refused_field(error: grpc.aio.AioRpcError) -> str:
    """The field that the details of an error name."""
    trailers = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    for detail in status.details:
        bad = error_details_pb2.BadRequest()
        if detail.Unpack(bad):
            return str(bad.field_violations[0].field)
    return ""


async def test_calls_come_in_deltas() -> None:
    scripted = dispatcher(said(f"Let me look.\n{call_text('get_weather', PARIS)}"))
    async with serving(dispatcher=scripted, model=chat_model(HERMES)) as gateway:
        responses = await chat(gateway, pb.ChatRequest(messages=[ASKED], tools=[TOOL]))

    deltas = [delta for response in responses for delta in response.tool_calls]
    assert "".join(response.content for response in responses) == "Let me look."
    assert [delta.name for delta in deltas if delta.id] == ["get_weather"]
    assert "".join(delta.arguments for delta in deltas) == PARIS
    assert len(deltas) > 2
    assert responses[-1].finish_reason == "tool_calls"
    assert json.dumps(WEATHER) in text_of(scripted.generations[0].prompt)


async def test_a_conversation_about_calls_is_rendered() -> None:
    scripted = dispatcher(said("Sunny."))
    call = pb.ToolCall(id="c1", name="get_weather", arguments=PARIS)
    messages = [
        ASKED,
        pb.ChatMessage(role="assistant", reasoning="hm", tool_calls=[call]),
        pb.ChatMessage(role="tool", tool_call_id="c1", content="sunny"),
    ]
    async with serving(dispatcher=scripted, model=chat_model(HERMES)) as gateway:
        await chat(gateway, pb.ChatRequest(messages=messages))

    assert text_of(scripted.generations[0].prompt) == (
        f"<|user|>Weather in Paris?<|assistant|>(hm)[call get_weather {PARIS}]"
        "<|tool|>sunny<|assistant|>"
    )


async def test_a_message_needs_a_content_on_both_faces_and_it_may_be_empty() -> None:
    said_before = {"role": "assistant", "reasoning": "hm"}  # which needs none
    given: list[dict[str, Any]] = [{"role": "user", "content": ""}, said_before, {"role": "user"}]
    path = "messages[2].content"
    async with serving(model=chat_model(HERMES)) as gateway:
        by_http = await gateway.http.post("/v1/chat/completions", json={"messages": given})
        with pytest.raises(grpc.aio.AioRpcError) as by_grpc:
            await chat(gateway, pb.ChatRequest(messages=[pb.ChatMessage(**it) for it in given]))

    error = by_http.json()["error"]
    assert error["message"] == f"{path} is missing; give a text, which may be empty"
    assert by_grpc.value.details() == error["message"]
    assert refused_field(by_grpc.value) == error["param"] == path


@pytest.mark.parametrize("shows", [True, False])
async def test_reasoning_is_kept_apart(shows: bool) -> None:
    text = "Hm.</think>Yes."
    request = pb.ChatRequest(messages=[ASKED], include_reasoning=shows)
    request.chat_template_kwargs["thinks"] = True
    async with serving(dispatcher=dispatcher(said(text)), model=chat_model(THINKING)) as gateway:
        responses = await chat(gateway, request)

    assert "".join(response.content for response in responses) == "Yes."
    assert "".join(response.reasoning for response in responses) == ("Hm." if shows else "")
    reasoning = len(tokens_of("Hm.</think>"))
    assert responses[-1].usage.reasoning_tokens == reasoning


async def test_one_function_can_be_forced() -> None:
    scripted = dispatcher(said(PARIS))
    request = pb.ChatRequest(messages=[ASKED], tools=[TOOL], function="get_weather")
    async with serving(dispatcher=scripted, model=chat_model(PLAIN)) as gateway:
        responses = await chat(gateway, request)

    grammar = scripted.generations[0].sampling.grammar
    assert grammar is not None and grammar.kind is GrammarKind.JSON_SCHEMA
    assert json.loads(grammar.source) == FUNCTION["parameters"]
    assert "".join(d.arguments for r in responses for d in r.tool_calls) == PARIS


BROKEN = pb.Tool(name="f", parameters='{"type": "nothing"}')
WRONG = {
    "tools[0].parameters": pb.ChatRequest(tools=[pb.Tool(name="f", parameters="{")]),
    "tools[0].parameters ": pb.ChatRequest(tools=[BROKEN], function="f"),
    "tools[1]": pb.ChatRequest(tools=[TOOL, TOOL]),
    "tool_choice": pb.ChatRequest(tools=[TOOL], function="g"),
    "sampling.structured_output.regex": pb.ChatRequest(
        sampling=pb.SamplingOptions(structured_output=pb.StructuredOutput(regex="("))
    ),
    "sampling.ignore_eos": pb.ChatRequest(
        sampling=pb.SamplingOptions(
            structured_output=pb.StructuredOutput(json_object=True), ignore_eos=True
        )
    ),
    "sampling.structured_output.json_schema": pb.ChatRequest(
        sampling=pb.SamplingOptions(structured_output=pb.StructuredOutput(json_schema="{"))
    ),
    "chat_template_kwargs": pb.ChatRequest(
        chat_template_kwargs=Struct(fields={"x": Value(number_value=math.nan)})
    ),
}


@pytest.mark.parametrize("field", WRONG)
async def test_what_is_wrong_is_named(field: str) -> None:
    request = pb.ChatRequest()
    request.CopyFrom(WRONG[field])
    request.messages.append(ASKED)
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(HERMES)) as gateway:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await chat(gateway, request)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused_field(caught.value) == field.strip()
