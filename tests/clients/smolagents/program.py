"""Hugging Face's smolagents: an agent that calls tools, of which one takes its last word."""

from __future__ import annotations

import steps
from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

model = OpenAIModel(model_id=steps.MODEL, api_base=f"{steps.URL}/v1", api_key=steps.KEY)
QUESTION = [{"role": "user", "content": [{"type": "text", "text": steps.QUESTION}]}]


def stream() -> list[str]:
    return [delta.content for delta in model.generate_stream(QUESTION) if delta.content]


def loop(*, streamed: bool) -> str:
    agent = ToolCallingAgent(
        tools=[tool(steps.get_weather)],
        model=model,
        stream_outputs=streamed,
        max_steps=6,
        max_tool_threads=1,
        verbosity_level=LogLevel.OFF,
    )
    return str(agent.run(steps.WEATHER_QUESTION))


steps.run(
    answer=lambda: model.generate(QUESTION).content,
    stream=stream,
    tools=lambda: loop(streamed=False),
    tools_streamed=lambda: loop(streamed=True),
)
