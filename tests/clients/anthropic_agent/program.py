"""A coding agent as Claude Code asks, through `anthropic`: its own tool runner, streamed.

Instructions in blocks with cache points, of which one differs each time; thinking that is asked for
and sent back; results as blocks, one of them an error; counting before each turn; beta headers.
"""

from __future__ import annotations

import uuid
from typing import Any

import anthropic
import steps
from anthropic import beta_tool

client = anthropic.Anthropic(base_url=steps.URL, auth_token=steps.KEY, api_key=None)
EPHEMERAL = {"type": "ephemeral"}


def asked(question: str) -> dict[str, Any]:
    return {
        "model": steps.MODEL,
        "max_tokens": 20_000,  # of more the package wants streams only
        "system": [
            {"type": "text", "text": f"x-anthropic-billing-header: cch={uuid.uuid4().hex};"},
            {"type": "text", "text": "You mend bugs.", "cache_control": EPHEMERAL},
            {"type": "text", "text": "Use the tools.", "cache_control": EPHEMERAL},
        ],
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": question, "cache_control": EPHEMERAL}],
            }
        ],
        "thinking": {"type": "enabled", "budget_tokens": 4000},
        "metadata": {"user_id": "user_0_account__session_0"},
        "betas": ["interleaved-thinking-2025-05-14", "fine-grained-tool-streaming-2025-05-14"],
    }


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def answer() -> str:
    return text_of(client.beta.messages.create(**asked(steps.QUESTION)))


def stream() -> list[str]:
    with client.beta.messages.stream(**asked(steps.QUESTION)) as events:
        return list(events.text_stream)


def tools() -> str:
    """With the package's own runner, as its documents have it."""
    runner = client.beta.messages.tool_runner(
        **asked(steps.WEATHER_QUESTION), tools=[beta_tool(steps.get_weather)], stream=True
    )
    last = None
    for events in runner:
        last = events.get_final_message()
    return text_of(last)


def tools_by_hand() -> str:
    """Counted before each turn; the first try of each tool fails."""
    body = asked(steps.WEATHER_QUESTION)
    tool = {
        "name": "get_weather",
        "description": steps.DESCRIPTION,
        "input_schema": steps.SCHEMA,
        "cache_control": EPHEMERAL,
    }
    has_failed = False
    while True:
        counted = client.beta.messages.count_tokens(
            **{key: body[key] for key in ("model", "system", "messages", "thinking")}, tools=[tool]
        )
        with client.beta.messages.stream(**body, tools=[tool]) as events:
            message = events.get_final_message()
        usage = message.usage
        prompt_len = usage.input_tokens + (usage.cache_read_input_tokens or 0)
        prompt_len += usage.cache_creation_input_tokens or 0
        assert counted.input_tokens == prompt_len, f"counted {counted.input_tokens}: {usage}"
        if message.stop_reason != "tool_use":
            return text_of(message)
        results: list[dict[str, Any]] = []
        for block in message.content:
            if block.type == "tool_use":
                told = [{"type": "text", "text": "no network"}]
                if has_failed:
                    told = [{"type": "text", "text": steps.get_weather(**block.input)}]
                results.append(
                    {
                        "type": "tool_result",
                        "tool_use_id": block.id,
                        "content": told,
                        "is_error": not has_failed,
                    }
                )
                has_failed = True
        results[-1]["cache_control"] = EPHEMERAL
        body["messages"][-1]["content"][-1].pop("cache_control", None)
        body["messages"] += [
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": results},
        ]


steps.run(answer=answer, stream=stream, tools=tools, tools_by_hand=tools_by_hand)
