"""LlamaIndex' `OpenAILike`, and an agent with it."""

from __future__ import annotations

import steps
from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

model = OpenAILike(
    model=steps.MODEL,
    api_base=f"{steps.URL}/v1",
    api_key=steps.KEY,
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=32_000,
)


async def answer() -> str:
    return (await model.acomplete(steps.QUESTION)).text


async def stream() -> list[str]:
    pieces = await model.astream_complete(steps.QUESTION)
    return [piece.delta async for piece in pieces if piece.delta]


async def loop(*, streaming: bool) -> str:
    tool = FunctionTool.from_defaults(steps.get_weather)
    agent = FunctionAgent(tools=[tool], llm=model, streaming=streaming)
    running = agent.run(steps.WEATHER_QUESTION)
    async for event in running.stream_events():
        assert streaming or not isinstance(event, AgentStream) or event.raw is not None
    return str(await running)


steps.run(
    answer=answer,
    stream=stream,
    tools=lambda: loop(streaming=False),
    tools_streamed=lambda: loop(streaming=True),
)
