"""OpenAI's deprecated `functions`, as clients of then send and read them."""

from __future__ import annotations

import pytest
from tests.gateway.chat_models import (
    PARIS,
    USER,
    WEATHER,
    call_text,
    chat_model,
    dispatcher,
    openai_of,
    said,
)
from tests.gateway.scripted import MODEL, serving, text_of

FUNCTIONS = [WEATHER["function"]]
TWICE = f"Let me look. {call_text('get_weather', PARIS)}{call_text('get_weather', PARIS)}"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_functions_are_tools_and_their_call_is_answered_as_it_was_then(
    is_streamed: bool,
) -> None:
    scripted = dispatcher(said(TWICE))
    async with serving(dispatcher=scripted, model=chat_model()) as gateway:
        chats = openai_of(gateway).chat.completions
        common = {"model": MODEL, "messages": USER, "temperature": 0}
        answer = await chats.create(functions=FUNCTIONS, stream=is_streamed, **common)
        if is_streamed:
            choices = [chunk.choices[0] async for chunk in answer]
            parts = [one.delta for one in choices]
            calls = [part.function_call for part in parts if part.function_call is not None]
            names = [call.name for call in calls if call.name is not None]
            arguments = "".join(call.arguments for call in calls)
            text = "".join(part.content or "" for part in parts)
            finish_reason = choices[-1].finish_reason
        else:
            (choice,), parts = answer.choices, [answer.choices[0].message]
            names = [choice.message.function_call.name]
            arguments, text = choice.message.function_call.arguments, choice.message.content
            finish_reason = choice.finish_reason
        await chats.create(tools=[WEATHER], parallel_tool_calls=False, **common)

    assert (names, arguments, finish_reason) == (["get_weather"], PARIS, "function_call")
    assert text == "Let me look." and not any(part.tool_calls for part in parts)
    by_functions, by_tools = scripted.generations
    assert by_functions.prompt == by_tools.prompt


async def test_calls_of_functions_and_what_they_said_are_those_of_tools() -> None:
    call = {"name": "get_weather", "arguments": PARIS}
    scripted = dispatcher(said("Sunny."))
    async with serving(dispatcher=scripted, model=chat_model()) as gateway:
        messages = [
            *USER,
            {"role": "assistant", "content": None, "function_call": call},
            {"role": "function", "name": "get_weather", "content": "sunny"},
        ]
        chats = openai_of(gateway).chat.completions
        answer = await chats.create(model=MODEL, messages=messages, functions=FUNCTIONS)
        await chats.create(
            model=MODEL, messages=USER, functions=FUNCTIONS, function_call={"name": "get_weather"}
        )

    assert answer.choices[0].message.content == "Sunny."
    assert answer.choices[0].finish_reason == "stop"
    prompt = text_of(scripted.generations[0].prompt)
    assert f"[call get_weather {PARIS}]<|tool|>sunny" in prompt
    grammar = scripted.generations[1].sampling.grammar
    assert grammar is not None and "city" in grammar.source
