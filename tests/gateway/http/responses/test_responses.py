"""POST /v1/responses through the official `openai` package."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel
from tests.gateway.chat_models import (
    PARIS,
    PLAIN,
    THINKING,
    WEATHER,
    call_text,
    chat_model,
    dispatcher,
    openai_of,
    said,
)
from tests.gateway.scripted import (
    MODEL,
    Script,
    serving,
    text_of,
    tokens_of,
)

from baton.core.errors import Unavailable

FLAT_WEATHER = {"type": "function", **WEATHER["function"]}
FOX = "the quick brown fox — 日本 🦊"


async def test_a_text_is_answered() -> None:
    scripted = dispatcher(said(FOX))
    async with serving(dispatcher=scripted, model=chat_model()) as gateway:
        response = await openai_of(gateway).responses.create(
            model=MODEL,
            input="Hello",
            instructions="Be brief.",
            max_output_tokens=99,
            metadata={"a": "b"},
        )

    assert response.output_text == FOX
    assert (response.status, response.error, response.store) == ("completed", None, False)
    assert response.metadata == {"a": "b"}
    assert response.usage.output_tokens == len(tokens_of(FOX)) + 1
    assert (
        response.usage.total_tokens == len(scripted.generations[0].prompt) + len(tokens_of(FOX)) + 1
    )
    prompt = text_of(scripted.generations[0].prompt)
    assert prompt == "<|system|>Be brief.<|user|>Hello<|assistant|>"
    assert scripted.generations[0].sampling.max_tokens == 99


async def test_items_are_a_conversation() -> None:
    scripted = dispatcher(said("Sunny."))
    async with serving(dispatcher=scripted, model=chat_model()) as gateway:
        client = openai_of(gateway)
        items = [
            {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
            {"role": "user", "content": "Weather?"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call", "call_id": "b", "name": "get_time", "arguments": ""},
            {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": PARIS},
            {"type": "function_call_output", "call_id": "c", "output": "sunny"},
        ]
        first = await client.responses.create(model=MODEL, input=items)
        await client.responses.create(
            model=MODEL, input=[*items, *first.output, {"role": "user", "content": "Sure?"}]
        )

    prompts = [text_of(generation.prompt) for generation in scripted.generations]
    begun = (
        "<|system|>Be brief.<|user|>Weather?<|assistant|>[call get_time {}]"
        f"[call get_weather {PARIS}]<|tool|>sunny<|assistant|>"
    )
    assert prompts == [begun, f"{begun}Sunny.<|user|>Sure?<|assistant|>"]


async def test_calls_are_items() -> None:
    script = said(f"Let me look. {call_text('get_weather', PARIS)}")
    async with serving(dispatcher=dispatcher(script), model=chat_model()) as gateway:
        response = await openai_of(gateway).responses.create(
            model=MODEL, input="Weather?", tools=[FLAT_WEATHER]
        )

    message, call = response.output
    assert response.output_text == "Let me look."
    assert (call.type, call.name, call.arguments, call.status) == (
        "function_call",
        "get_weather",
        PARIS,
        "completed",
    )
    assert call.call_id.startswith("call_")
    assert message.type == "message"
    assert response.tools[0].name == "get_weather"


async def test_a_stream_has_the_events_in_order() -> None:
    text = f"<think>\nHm.</think>\nYes. {call_text('get_weather', PARIS)}"
    async with serving(dispatcher=dispatcher(said(text)), model=chat_model(THINKING)) as gateway:
        stream = await openai_of(gateway).responses.create(
            model=MODEL, input="Weather?", tools=[FLAT_WEATHER], stream=True
        )
        events = [event async for event in stream]

    kinds = [event.type for event in events]
    assert [kind for i, kind in enumerate(kinds) if kind not in kinds[max(0, i - 1) : i]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert kinds.count("response.function_call_arguments.delta") > 1
    final = events[-1].response
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    reasoning = text[: text.index("</think>") + len("</think>")]
    assert final.usage.output_tokens_details.reasoning_tokens == len(tokens_of(reasoning))


async def test_the_helper_that_accumulates_a_stream() -> None:
    text = f"Yes. {call_text('get_weather', PARIS)}"
    async with (
        serving(dispatcher=dispatcher(said(text)), model=chat_model()) as gateway,
        openai_of(gateway).responses.stream(
            model=MODEL, input="Weather?", tools=[FLAT_WEATHER]
        ) as stream,
    ):
        snapshots = [
            event.snapshot async for event in stream if event.type == "response.output_text.delta"
        ]
        final = await stream.get_final_response()

    assert snapshots[-1] == final.output_text == "Yes."
    assert final.output[1].arguments == PARIS


class Place(BaseModel):
    city: str


async def test_answers_are_parsed_by_the_package() -> None:
    scripted = dispatcher(said(PARIS))
    async with serving(dispatcher=scripted, model=chat_model(PLAIN)) as gateway:
        response = await openai_of(gateway).responses.parse(
            model=MODEL, input="Where?", text_format=Place
        )

    assert response.output_parsed == Place(city="Paris")
    grammar = scripted.generations[0].sampling.grammar
    assert grammar is not None and "city" in json.loads(grammar.source)["properties"]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_answer_that_is_cut_short_is_incomplete(is_streamed: bool) -> None:
    async with serving(dispatcher=dispatcher(said(FOX)), model=chat_model()) as gateway:
        answer = await openai_of(gateway).responses.create(
            model=MODEL, input="Hello", max_output_tokens=3, stream=is_streamed
        )
        events = [event async for event in answer] if is_streamed else []

    response = events[-1].response if is_streamed else answer
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"
    assert not events or events[-1].type == "response.incomplete"


async def test_a_stream_that_breaks_says_so() -> None:
    script = Script(tokens=tokens_of(FOX), error=Unavailable("lost"), num_before=3)
    async with serving(dispatcher=dispatcher(script), model=chat_model()) as gateway:
        stream = await openai_of(gateway).responses.create(model=MODEL, input="Hello", stream=True)
        events = [event async for event in stream]

    assert events[-1].type == "response.failed"
    assert events[-1].response.error.message == "lost"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_logprobs_cover_the_answer_alone(is_streamed: bool) -> None:
    call = call_text("get_weather", PARIS)
    script = said(f"<think>Hm.</think>{FOX} {call}\n {FOX}")
    async with serving(dispatcher=dispatcher(script), model=chat_model(THINKING)) as gateway:
        answer = await openai_of(gateway).responses.create(
            model=MODEL,
            input="Hello",
            tools=[FLAT_WEATHER],
            top_logprobs=2,
            include=["message.output_text.logprobs"],
            stream=is_streamed,
        )
        events = [event async for event in answer] if is_streamed else []

    response = events[-1].response if is_streamed else answer
    assert [item.type for item in response.output] == [
        "reasoning", "message", "function_call", "message",
    ]  # fmt: skip
    for message in (response.output[1], response.output[3]):
        entries = message.content[0].logprobs
        data = bytes(byte for entry in entries for byte in entry.bytes)
        assert data.decode().lstrip() == message.content[0].text == FOX
        assert {len(entry.top_logprobs) for entry in entries} == {2}
