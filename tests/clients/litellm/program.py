"""LiteLLM, with the provider `openai`."""

from __future__ import annotations

import json
import os
from typing import Any

import steps

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the internet for prices first
import litellm

ASKED: dict[str, Any] = {
    "model": f"openai/{steps.MODEL}",
    "api_base": f"{steps.URL}/v1",
    "api_key": steps.KEY,
}
QUESTION = [{"role": "user", "content": steps.QUESTION}]


def answer() -> str:
    return litellm.completion(**ASKED, messages=QUESTION).choices[0].message.content


def stream() -> list[str]:
    chunks = litellm.completion(**ASKED, messages=QUESTION, stream=True)
    return [text for chunk in chunks if (text := chunk.choices[0].delta.content)]


def complete(messages: list[Any]) -> Any:
    return litellm.completion(**ASKED, messages=messages, tools=[steps.OPENAI_TOOL])


def complete_streamed(messages: list[Any]) -> Any:
    tools = [steps.OPENAI_TOOL]
    chunks = litellm.completion(**ASKED, messages=messages, tools=tools, stream=True)
    return litellm.stream_chunk_builder(list(chunks), messages=messages)


def loop(ask: Any) -> str:
    messages: list[Any] = [{"role": "user", "content": steps.WEATHER_QUESTION}]
    while (message := ask(messages).choices[0].message).tool_calls:
        messages.append(message)
        for call in message.tool_calls:
            told = steps.get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": told})
    return message.content


steps.run(
    answer=answer,
    stream=stream,
    tools=lambda: loop(complete),
    tools_streamed=lambda: loop(complete_streamed),
)
