"""Baton's own SDK over gRPC, with the packages that it says it needs and no others."""

from __future__ import annotations

from typing import Any

import steps

from baton.client.client import BatonClient

client = BatonClient(steps.GRPC, api_key=steps.KEY)
ASKED = [{"role": "user", "content": steps.QUESTION}]


def answer() -> str:
    return client.chat(ASKED).text


def stream() -> list[str]:
    with client.stream_chat(ASKED) as deltas:
        return [delta.text for delta in deltas if delta.text]


def tools() -> str:
    messages: list[Any] = [{"role": "user", "content": steps.WEATHER_QUESTION}]
    offered = [steps.OPENAI_TOOL["function"]]
    while (told := client.chat(messages, tools=offered)).tool_calls:
        messages.append(told.message)
        for call in told.tool_calls:
            content = steps.get_weather(**call.parse())
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    return told.text


steps.run(answer=answer, stream=stream, tools=tools)
