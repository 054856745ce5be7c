"""The `openai` package."""

from __future__ import annotations

import json
from typing import Any

import openai
import steps
from pydantic import BaseModel

client = openai.OpenAI(base_url=f"{steps.URL}/v1", api_key=steps.KEY)
chats = client.chat.completions
ASKED = [{"role": "user", "content": steps.QUESTION}]


def answer() -> str:
    return chats.create(model=steps.MODEL, messages=ASKED).choices[0].message.content


class Said(BaseModel):
    text: str


def answer_object() -> str:
    """By a schema that is held to, over chats and over /v1/responses."""
    chat = chats.parse(model=steps.MODEL, messages=ASKED, response_format=Said)
    parsed = client.responses.parse(model=steps.MODEL, input=ASKED, text_format=Said).output_parsed
    assert chat.choices[0].message.parsed == parsed, parsed
    return parsed.text


def stream() -> list[str]:
    with chats.stream(model=steps.MODEL, messages=ASKED) as events:
        return [event.delta for event in events if event.type == "content.delta"]


def complete(messages: list[Any]) -> Any:
    return chats.create(model=steps.MODEL, messages=messages, tools=[steps.OPENAI_TOOL])


def complete_streamed(messages: list[Any]) -> Any:
    with chats.stream(model=steps.MODEL, messages=messages, tools=[steps.OPENAI_TOOL]) as events:
        return events.get_final_completion()


def loop(ask: Any) -> str:
    messages: list[Any] = [{"role": "user", "content": steps.WEATHER_QUESTION}]
    while (message := ask(messages).choices[0].message).tool_calls:
        messages.append(message)
        for call in message.tool_calls:
            told = steps.get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": told})
    return message.content


def responses() -> str:
    """The same over /v1/responses."""
    items: list[Any] = [{"role": "user", "content": steps.WEATHER_QUESTION}]
    tool = {"type": "function", "strict": False, **steps.OPENAI_TOOL["function"]}
    while True:
        response = client.responses.create(model=steps.MODEL, input=items, tools=[tool])
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return response.output_text
        items += response.output
        for call in calls:
            told = steps.get_weather(**json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": told})


steps.run(
    answer=answer,
    answer_object=answer_object,
    stream=stream,
    tools=lambda: loop(complete),
    tools_streamed=lambda: loop(complete_streamed),
    tools_responses=responses,
)
