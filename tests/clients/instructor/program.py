"""Instructor: answers as objects, by a forced call and by a schema; tools as its parallel mode."""

from __future__ import annotations

from typing import Any

import instructor
import openai
import steps
from pydantic import BaseModel, Field

client = openai.OpenAI(base_url=f"{steps.URL}/v1", api_key=steps.KEY)
by_tool = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
by_schema = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)


class Said(BaseModel):
    text: str


class get_weather(BaseModel):
    """Tell how warm it is in a city."""

    city: str = Field(description="Its name.")


ASKED: dict[str, Any] = {
    "model": steps.MODEL,
    "messages": [{"role": "user", "content": steps.QUESTION}],
    "response_model": Said,
    "max_retries": 0,
}


def answer() -> str:
    said = [one.chat.completions.create(**ASKED).text for one in (by_tool, by_schema)]
    assert said[0] == said[1], said
    return said[0]


def stream() -> list[str]:
    """Each partial object goes on where the last one stopped."""
    texts = [said.text or "" for said in by_tool.chat.completions.create_partial(**ASKED)]
    lens = [0, *map(len, texts)]
    new = (text[start:] for start, text in zip(lens, texts, strict=False))
    return [piece for piece in new if piece]


def tools() -> str:
    """Forced to call for as long as cities are missing, as the package forces each answer."""
    messages: list[Any] = [{"role": "user", "content": steps.WEATHER_QUESTION}]
    for _ in range(4):
        wanted, completion = by_tool.chat.completions.create_with_completion(
            model=steps.MODEL, messages=messages, response_model=get_weather, max_retries=0
        )
        message = completion.choices[0].message
        told = steps.get_weather(wanted.city)
        call = message.tool_calls[0]
        messages += [
            message.model_dump(),
            {"role": "tool", "tool_call_id": call.id, "content": told},
        ]
    return (
        client.chat.completions.create(
            model=steps.MODEL, messages=messages, tools=[steps.OPENAI_TOOL]
        )
        .choices[0]
        .message.content
    )


steps.run(answer=answer, stream=stream, tools=tools)
