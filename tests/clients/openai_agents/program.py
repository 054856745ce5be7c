"""OpenAI's Agents SDK, over /v1/responses, as it asks unless told otherwise, and over chats."""

from __future__ import annotations

import steps
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent

set_tracing_disabled(True)  # or it asks OpenAI's own servers
client = AsyncOpenAI(base_url=f"{steps.URL}/v1", api_key=steps.KEY)
responses = OpenAIResponsesModel(steps.MODEL, client)
chats = OpenAIChatCompletionsModel(steps.MODEL, client)
weather = function_tool(steps.get_weather)


def agent(model: OpenAIResponsesModel | OpenAIChatCompletionsModel, *, tools: bool) -> Agent:
    given = [weather] if tools else []
    return Agent(name="Assistant", instructions="You are terse.", model=model, tools=given)


async def answer() -> str:
    return (await Runner.run(agent(responses, tools=False), steps.QUESTION)).final_output


async def stream() -> list[str]:
    result = Runner.run_streamed(agent(responses, tools=False), steps.QUESTION)
    return [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
    ]


async def loop(model: OpenAIResponsesModel | OpenAIChatCompletionsModel) -> str:
    return (await Runner.run(agent(model, tools=True), steps.WEATHER_QUESTION)).final_output


async def loop_streamed(model: OpenAIResponsesModel | OpenAIChatCompletionsModel) -> str:
    result = Runner.run_streamed(agent(model, tools=True), steps.WEATHER_QUESTION)
    async for _ in result.stream_events():
        pass
    return result.final_output


steps.run(
    answer=answer,
    stream=stream,
    tools=lambda: loop(responses),
    tools_streamed=lambda: loop_streamed(responses),
    tools_chat=lambda: loop(chats),
    tools_chat_streamed=lambda: loop_streamed(chats),
)
