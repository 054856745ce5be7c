"""LangGraph: a graph of its own, and the agent that LangChain builds on it."""

from __future__ import annotations

from typing import Any

import steps
from langchain.agents import create_agent
from langchain_core.messages import AIMessageChunk
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

model = ChatOpenAI(model=steps.MODEL, base_url=f"{steps.URL}/v1", api_key=steps.KEY)
TOOLS = [tool(steps.get_weather)]


def graph(chat: Any) -> Any:
    def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [chat.invoke(state["messages"])]}

    built = StateGraph(MessagesState)
    built.add_node("model", call_model)
    built.add_node("tools", ToolNode(TOOLS))
    built.add_edge(START, "model")
    built.add_conditional_edges("model", tools_condition)
    built.add_edge("tools", "model")
    return built.compile()


def asked(question: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}]}


def last_of(state: dict[str, Any]) -> str:
    return state["messages"][-1].content


def pieces(graph: Any, question: str) -> list[str]:
    told = graph.stream(asked(question), stream_mode="messages")
    return [m.content for m, _ in told if isinstance(m, AIMessageChunk) and m.content]


def tools_streamed() -> str:
    """What the model says behind its first words, which are of the turn that calls."""
    said = "".join(pieces(graph(model.bind_tools(TOOLS)), steps.WEATHER_QUESTION))
    return said.removeprefix("Let me look.").strip()


steps.run(
    answer=lambda: last_of(graph(model).invoke(asked(steps.QUESTION))),
    stream=lambda: pieces(graph(model), steps.QUESTION),
    tools=lambda: last_of(graph(model.bind_tools(TOOLS)).invoke(asked(steps.WEATHER_QUESTION))),
    tools_streamed=tools_streamed,
    tools_agent=lambda: last_of(create_agent(model, TOOLS).invoke(asked(steps.WEATHER_QUESTION))),
)
