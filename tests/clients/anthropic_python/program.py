"""The `anthropic` package, over /v1/messages."""

from __future__ import annotations

from typing import Any

import anthropic
import steps
from pydantic import BaseModel

client = anthropic.Anthropic(base_url=steps.URL, api_key=steps.KEY)
ASKED: dict[str, Any] = {
    "model": steps.MODEL,
    "max_tokens": 500,
    "messages": [{"role": "user", "content": steps.QUESTION}],
}
TOOL = {"name": "get_weather", "description": steps.DESCRIPTION, "input_schema": steps.SCHEMA}


def answer() -> str:
    return client.messages.create(**ASKED).content[0].text


class Said(BaseModel):
    text: str


def stream() -> list[str]:
    with client.messages.stream(**ASKED) as events:
        return list(events.text_stream)


def tools() -> str:
    messages: list[Any] = [{"role": "user", "content": steps.WEATHER_QUESTION}]
    while True:
        message = client.messages.create(**{**ASKED, "messages": messages}, tools=[TOOL])
        if message.stop_reason != "tool_use":
            return message.content[0].text
        messages.append({"role": "assistant", "content": message.content})
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block.id,
                "content": steps.get_weather(**block.input),
            }
            for block in message.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})


steps.run(
    answer=answer,
    answer_object=lambda: client.messages.parse(**ASKED, output_format=Said).parsed_output.text,
    stream=stream,
    tools=tools,
)
