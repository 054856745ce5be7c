"""LangChain's `ChatOpenAI`."""

from __future__ import annotations

from typing import Any

import steps
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model=steps.MODEL, base_url=f"{steps.URL}/v1", api_key=steps.KEY)
weather = tool(steps.get_weather)
agent = model.bind_tools([weather])


def stream() -> list[str]:
    return [chunk.content for chunk in model.stream(steps.QUESTION) if chunk.content]


def invoke_streamed(messages: list[Any]) -> Any:
    first, *rest = agent.stream(messages)
    whole: AIMessageChunk = first
    for chunk in rest:
        whole += chunk
    return whole


def loop(ask: Any) -> str:
    messages: list[Any] = [HumanMessage(steps.WEATHER_QUESTION)]
    while (message := ask(messages)).tool_calls:
        messages += [message, *(weather.invoke(call) for call in message.tool_calls)]
    return message.content


steps.run(
    answer=lambda: model.invoke(steps.QUESTION).content,
    stream=stream,
    tools=lambda: loop(agent.invoke),
    tools_streamed=lambda: loop(invoke_streamed),
)
