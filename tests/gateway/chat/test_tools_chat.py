"""Tool calls over HTTP, seen through the official `openai` package."""

from __future__ import annotations

import json

import openai
import pytest
from pydantic import BaseModel
from tests.gateway.chat_models import (
    HERMES,
    PARIS,
    PLAIN,
    USER,
    WEATHER,
    call_text,
    chat_model,
    dispatcher,
    openai_of,
    said,
)
from tests.gateway.scripted import (
    MODEL,
    error_of,
    serving,
    text_of,
)

from baton.core.sampling import GrammarKind


async def test_a_call_is_taken_out_of_the_text() -> None:
    script = said(f"Let me look.\n{call_text('get_weather', PARIS)}")
    async with serving(dispatcher=dispatcher(script), model=chat_model()) as gateway:
        chat = await openai_of(gateway).chat.completions.create(
            model=MODEL, messages=USER, tools=[WEATHER]
        )

    choice = chat.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name, call.function.arguments) == (
        "function",
        "get_weather",
        PARIS,
    )
    assert call.id.startswith("call_") and len(call.id) == 29


async def test_calls_are_streamed_as_they_are_written() -> None:
    calls = call_text("get_weather", PARIS) + call_text("get_weather", '{"city": "Rome"}')
    async with serving(dispatcher=dispatcher(said(calls)), model=chat_model()) as gateway:
        stream = await openai_of(gateway).chat.completions.create(
            model=MODEL, messages=USER, tools=[WEATHER], stream=True
        )
        chunks = [chunk async for chunk in stream]

    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [call.index for call in deltas if call.id] == [0, 1]
    assert [call.function.name for call in deltas if call.id] == ["get_weather"] * 2
    arguments = ["".join(d.function.arguments for d in deltas if d.index == i) for i in (0, 1)]
    assert arguments == [PARIS, '{"city": "Rome"}']
    assert len(deltas) > 4
    assert all(not chunk.choices[0].delta.content for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_the_helper_that_accumulates_a_stream_knows_the_calls() -> None:
    script = said(call_text("get_weather", PARIS))
    async with (
        serving(dispatcher=dispatcher(script), model=chat_model()) as gateway,
        openai_of(gateway).chat.completions.stream(
            model=MODEL, messages=USER, tools=[WEATHER]
        ) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()

    assert "tool_calls.function.arguments.done" in kinds
    assert final.choices[0].message.tool_calls[0].function.arguments == PARIS


async def test_the_prompt_has_the_tools_and_the_conversation_about_them() -> None:
    call = {"id": "c1", "type": "function"}
    messages = [
        *USER,
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [{**call, "function": {"name": "get_weather", "arguments": PARIS}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    scripted = dispatcher(said("Sunny."))
    async with serving(dispatcher=scripted, model=chat_model()) as gateway:
        await openai_of(gateway).chat.completions.create(
            model=MODEL, messages=messages, tools=[WEATHER]
        )

    prompt = text_of(scripted.generations[0].prompt)
    assert prompt == (
        f"[tools]{json.dumps(WEATHER)}<tool_call>[/tools]<|user|>Weather in Paris?"
        f"<|assistant|>(hm)[call get_weather {PARIS}]<|tool|>sunny<|assistant|>"
    )


async def test_tools_that_may_not_be_called_are_not_shown() -> None:
    scripted = dispatcher(said(call_text("get_weather", "{}")))
    async with serving(dispatcher=scripted, model=chat_model()) as gateway:
        chat = await openai_of(gateway).chat.completions.create(
            model=MODEL, messages=USER, tools=[WEATHER], tool_choice="none"
        )

    assert "[tools]" not in text_of(scripted.generations[0].prompt)
    assert chat.choices[0].message.content == call_text("get_weather", "{}")
    assert chat.choices[0].finish_reason == "stop"


async def test_a_call_can_be_required_of_any_model() -> None:
    text = f'[{{"name": "get_weather", "parameters": {PARIS}}}]'
    scripted = dispatcher(said(text))
    async with serving(dispatcher=scripted, model=chat_model(PLAIN)) as gateway:
        chat = await openai_of(gateway).chat.completions.create(
            model=MODEL,
            messages=USER,
            tools=[WEATHER],
            tool_choice="required",
            parallel_tool_calls=False,
        )

    grammar = scripted.generations[0].sampling.grammar
    assert grammar is not None and grammar.kind is GrammarKind.JSON_SCHEMA
    schema = json.loads(grammar.source)
    assert (schema["minItems"], schema["maxItems"]) == (1, 1)
    assert chat.choices[0].message.tool_calls[0].function.arguments == PARIS
    assert chat.choices[0].finish_reason == "tool_calls"


async def test_one_function_can_be_forced() -> None:
    scripted = dispatcher(said(PARIS))
    async with serving(dispatcher=scripted, model=chat_model(PLAIN)) as gateway:
        chat = await openai_of(gateway).chat.completions.create(
            model=MODEL,
            messages=USER,
            tools=[WEATHER],
            tool_choice={"type": "function", "function": {"name": "get_weather"}},
        )

    grammar = scripted.generations[0].sampling.grammar
    assert grammar is not None
    assert json.loads(grammar.source) == WEATHER["function"]["parameters"]
    (call,) = chat.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", PARIS)


async def test_each_choice_has_calls_of_its_own() -> None:
    script = said(call_text("get_weather", PARIS))
    async with serving(dispatcher=dispatcher(script), model=chat_model()) as gateway:
        chat = await openai_of(gateway).chat.completions.create(
            model=MODEL, messages=USER, tools=[WEATHER], n=2
        )

    ids = {choice.message.tool_calls[0].id for choice in chat.choices}
    assert len(ids) == 2
    assert [choice.message.content for choice in chat.choices] == [None, None]


class Answer(BaseModel):
    city: str


class GetWeather(BaseModel):
    city: str


async def test_answers_and_arguments_are_parsed_by_the_package() -> None:
    tool = openai.pydantic_function_tool(GetWeather)
    async with serving(dispatcher=dispatcher(said(PARIS)), model=chat_model()) as gateway:
        answer = await openai_of(gateway).chat.completions.parse(
            model=MODEL, messages=USER, response_format=Answer
        )
    script = said(call_text("GetWeather", PARIS))
    async with serving(dispatcher=dispatcher(script), model=chat_model()) as gateway:
        calling = await openai_of(gateway).chat.completions.parse(
            model=MODEL, messages=USER, tools=[tool]
        )

    assert answer.choices[0].message.parsed == Answer(city="Paris")
    function = calling.choices[0].message.tool_calls[0].function
    assert function.parsed_arguments == GetWeather(city="Paris")


async def test_logprobs_cover_the_tokens_of_calls() -> None:
    text = call_text("get_weather", PARIS)
    async with serving(dispatcher=dispatcher(said(text)), model=chat_model()) as gateway:
        stream = await openai_of(gateway).chat.completions.create(
            model=MODEL, messages=USER, tools=[WEATHER], logprobs=True, stream=True
        )
        chunks = [chunk async for chunk in stream]

    entries = [e for chunk in chunks for e in chunk.choices[0].logprobs.content]
    assert "".join(entry.token for entry in entries[:-1]) == text


@pytest.mark.parametrize(
    ("text", "calls"), [(PARIS, None), (call_text("get_weather", PARIS), [PARIS])]
)
async def test_an_answer_with_a_rule_or_a_call(text: str, calls: list[str] | None) -> None:
    async with serving(dispatcher=dispatcher(said(text)), model=chat_model(HERMES)) as gateway:
        response = await gateway.chat(tools=[WEATHER], response_format={"type": "json_object"})

    message = response.json()["choices"][0]["message"]
    assert message["content"] == (None if calls else PARIS)
    found = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    assert found == (calls or [])


@pytest.mark.parametrize(("mode", "is_forced"), [("auto", False), ("required", True)])
async def test_only_the_allowed_of_the_tools_are_offered(mode: str, is_forced: bool) -> None:
    others = [{"type": "function", "function": {"name": name}} for name in ("rain", "snow")]
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "get_weather"}}]}
    flat = {"mode": mode, "tools": [{"type": "function", "name": "get_weather"}]}
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model()) as gateway:
        await openai_of(gateway).chat.completions.create(
            model=MODEL,
            messages=USER,
            tools=[*others, WEATHER],
            tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
        )
        await openai_of(gateway).responses.create(
            model=MODEL,
            input="x",
            tools=[{"type": "function", **tool["function"]} for tool in (*others, WEATHER)],
            tool_choice={"type": "allowed_tools", **flat},
        )
        unknown = await gateway.chat(
            messages=USER,
            tools=others,
            tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
        )

    for generation in gateway.dispatcher.generations:
        shown = text_of(generation.prompt)
        assert "get_weather" in shown and "rain" not in shown and "snow" not in shown
        grammar = generation.sampling.grammar
        assert grammar is not None and ('"minItems":1' in grammar.source) == is_forced
    assert len(gateway.dispatcher.generations) == 2
    assert error_of(unknown)["message"].startswith("tool_choice allows 'get_weather'")
