"""GPT-OSS's channels over HTTP: reasoning, calls and answers, as clients know them elsewhere."""

from __future__ import annotations

import pytest
from tests.gateway.chat_models import (
    PARIS,
    USER,
    WEATHER,
    chat_model,
    dispatcher,
    openai_of,
    said,
)
from tests.gateway.scripted import MODEL, serving, text_of
from tests.gateway.text.test_harmony_template import HARMONY_LIKE

THOUGHT = "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant"
CALLS = (
    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
    " to=functions.get_weather<|channel|>commentary json<|message|>",
)


@pytest.mark.parametrize("header", CALLS)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_call_behind_reasoning(header: str, is_streamed: bool) -> None:
    scripted = dispatcher(said(f"{THOUGHT}{header}{PARIS}<|call|>"))
    async with serving(dispatcher=scripted, model=chat_model(HARMONY_LIKE)) as gateway:
        answer = await openai_of(gateway).chat.completions.create(
            model=MODEL, messages=USER, tools=[WEATHER], stream=is_streamed
        )
        parts = [chunk async for chunk in answer] if is_streamed else [answer]

    choices = [choice for part in parts for choice in part.choices]
    messages = [choice.delta if is_streamed else choice.message for choice in choices]
    calls = [call.function for message in messages for call in message.tool_calls or ()]
    assert "".join(call.name or "" for call in calls) == "get_weather"
    assert "".join(call.arguments or "" for call in calls) == PARIS
    assert "".join(getattr(each, "reasoning", None) or "" for each in messages) == "Look it up."
    assert not any(message.content for message in messages)
    assert choices[-1].finish_reason == "tool_calls"


async def test_an_answer_behind_reasoning_and_a_word_to_the_user() -> None:
    word = "<|channel|>commentary<|message|>One moment.<|end|><|start|>assistant"
    text = f"{THOUGHT}{word}<|channel|>final<|message|>Sunny.<|return|>"
    async with serving(
        dispatcher=dispatcher(said(text)), model=chat_model(HARMONY_LIKE)
    ) as gateway:
        chat = await openai_of(gateway).chat.completions.create(model=MODEL, messages=USER)

    message = chat.choices[0].message
    assert (message.reasoning, message.content) == ("Look it up.", "One moment.Sunny.")
    assert chat.usage.completion_tokens_details.reasoning_tokens > 0


async def test_what_a_call_found_goes_back_with_the_reasoning_that_led_to_it() -> None:
    scripted = dispatcher(said("<|channel|>final<|message|>Sunny."))
    call = {"name": "get_weather", "arguments": PARIS}
    chat = [
        *USER,
        {
            "role": "assistant",
            "reasoning": "Look it up.",
            "tool_calls": [{"id": "c", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "22 degrees"},
    ]
    async with serving(dispatcher=scripted, model=chat_model(HARMONY_LIKE)) as gateway:
        answer = await openai_of(gateway).chat.completions.create(
            model=MODEL, messages=chat, tools=[WEATHER]
        )

    prompt = text_of(scripted.generations[0].prompt)
    assert "<|channel|>analysis<|message|>Look it up." in prompt
    assert answer.choices[0].message.content == "Sunny."


async def test_a_call_that_must_be_made_is_written_as_the_answer() -> None:
    text = f'{THOUGHT}<|channel|>final<|message|>[{{"name": "get_weather", "parameters": {PARIS}}}]'
    scripted = dispatcher(said(text))
    async with serving(dispatcher=scripted, model=chat_model(HARMONY_LIKE)) as gateway:
        chat = await openai_of(gateway).chat.completions.create(
            model=MODEL, messages=USER, tools=[WEATHER], tool_choice="required"
        )

    (call,) = chat.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", PARIS)
    assert scripted.generations[0].sampling.grammar is not None
