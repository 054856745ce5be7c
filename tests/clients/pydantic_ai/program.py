"""Pydantic AI's agents."""

from __future__ import annotations

import steps
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=f"{steps.URL}/v1", api_key=steps.KEY)
model = OpenAIChatModel(steps.MODEL, provider=provider)
plain = Agent(model, instructions="You are terse.")
agent = Agent(model, instructions="You know the weather.", tools=[steps.get_weather])
by_responses = Agent(
    OpenAIResponsesModel(steps.MODEL, provider=provider), tools=[steps.get_weather]
)


class Said(BaseModel):
    text: str


async def answer_object() -> str:
    """By a call that is forced, and by a schema that is held to."""
    agents = [Agent(model, output_type=of(Said)) for of in (ToolOutput, NativeOutput)]
    said = [(await agent.run(steps.QUESTION)).output.text for agent in agents]
    assert said[0] == said[1], said
    return said[0]


async def answer() -> str:
    return (await plain.run(steps.QUESTION)).output


async def stream() -> list[str]:
    async with plain.run_stream(steps.QUESTION) as result:
        return [piece async for piece in result.stream_text(delta=True, debounce_by=None)]


async def tools() -> str:
    return (await agent.run(steps.WEATHER_QUESTION)).output


async def tools_streamed() -> str:
    async with agent.iter(steps.WEATHER_QUESTION) as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as events:
                    async for _ in events:
                        pass
    return run.result.output


async def tools_responses() -> str:
    return (await by_responses.run(steps.WEATHER_QUESTION)).output


steps.run(
    answer=answer,
    answer_object=answer_object,
    stream=stream,
    tools=tools,
    tools_streamed=tools_streamed,
    tools_responses=tools_responses,
)
