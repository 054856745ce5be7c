"""What a chat with tools may not ask for, and what the refusal says."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.chat_models import (
    HERMES,
    PARIS,
    PLAIN,
    USER,
    WEATHER,
    call_text,
    chat_model,
    dispatcher,
    said,
)
from tests.gateway.scripted import (
    error_of,
    serving,
)

NAMED_TWICE = [WEATHER, WEATHER]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[1]"}}
WRONG: dict[str, dict[str, Any]] = {
    "tools[0].type": {"tools": [{"type": "web_search", "custom": {"name": "x"}}]},
    "tools[0].custom.format.grammar.syntax": {
        "tools": [
            {
                "type": "custom",
                "custom": {
                    "name": "x",
                    "format": {"type": "grammar", "grammar": {"syntax": "ebnf"}},
                },
            }
        ]
    },
    "tools[0].function": {"tools": [{"type": "function"}]},
    "tools[1]": {"tools": NAMED_TWICE},
    "tools[0]": {"tools": [{"type": "function", "function": {"name": "a b"}}]},
    "tools[0].function.name": {"tools": [{"type": "function", "function": {}}]},
    "tool_choice": {"tools": [WEATHER], "tool_choice": "perhaps"},
    "tools[0].function.parameters": {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    },
    "messages[0].tool_calls[0].function.arguments": {
        "messages": [{"role": "assistant", "tool_calls": [CALL]}]
    },
    "messages[0].tool_calls": {
        "messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]
    },
    "response_format.json_schema.schema": {"response_format": {"type": "json_schema"}},
    "continue_final_message": {"continue_final_message": True, "add_generation_prompt": True},
}


def function_tool(name: str, *, strict: bool | None = None, **schema: Any) -> dict[str, Any]:
    function = {"name": name, "strict": strict, "parameters": {"type": "object", **schema}}
    return {"type": "function", "function": function}


def nested(depth: int) -> dict[str, Any]:
    return {"items": nested(depth - 1)} if depth else {}


IMPOSSIBLE: dict[str, Any] = {"properties": {"x": {"type": "string", "pattern": "(?=a)b"}}}
ALLOW_THE_LAST = {
    "type": "allowed_tools",
    "mode": "required",
    "tools": [{"type": "function", "function": {"name": "bad"}}],
}
BAD_SCHEMAS: dict[str, dict[str, Any]] = {
    "any call is required": {"tool_choice": "required"},
    "it alone is allowed": {"tool_choice": ALLOW_THE_LAST},
    "it is strict": {"tools": [WEATHER, function_tool("bad", strict=True, **IMPOSSIBLE)]},
    "an answer would have a format": {"response_format": {"type": "json_object"}},
    "it is nested too deeply": {
        "tools": [WEATHER, function_tool("bad", **nested(400))],
        "tool_choice": "required",
    },
}


@pytest.mark.parametrize("how", BAD_SCHEMAS)
async def test_the_tool_whose_schema_cannot_be_followed_is_named(how: str) -> None:
    body = {"tools": [WEATHER, function_tool("bad", **IMPOSSIBLE)], **BAD_SCHEMAS[how]}
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(HERMES)) as gateway:
        response = await gateway.chat(messages=USER, **body)

    assert response.status_code == 400
    error = error_of(response)
    assert error["param"] == "tools[1].function.parameters"
    assert error["message"].startswith("tools[1].function.parameters")


async def test_no_tool_is_named_where_no_output_can_end() -> None:
    model = chat_model(HERMES, has_eos=False)
    async with serving(dispatcher=dispatcher(said("x")), model=model) as gateway:
        response = await gateway.chat(messages=USER, tools=[WEATHER], tool_choice="required")

    error = error_of(response)
    assert error["param"] == "tools" and "end-of-sequence" in error["message"]


@pytest.mark.parametrize("field", WRONG)
async def test_what_is_wrong_is_named(field: str) -> None:
    body = {"messages": USER, **WRONG[field]}
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model()) as gateway:
        response = await gateway.http.post("/v1/chat/completions", json=body)

    assert response.status_code == 400
    assert error_of(response)["param"] == field


async def test_a_picture_that_a_tool_returns_is_refused_with_what_to_send_instead() -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]
    messages = [*USER, {"role": "tool", "tool_call_id": "c", "content": parts}]
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model()) as gateway:
        response = await gateway.http.post("/v1/chat/completions", json={"messages": messages})

    error = error_of(response)
    assert error["param"] == "messages[1].content[1].type"
    assert "models here read text" in error["message"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
async def test_what_is_not_there_cannot_be_called(choice: Any) -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model()) as gateway:
        response = await gateway.chat(tool_choice=choice)

    assert error_of(response)["param"] == "tool_choice"


async def test_where_no_calls_are_looked_for_the_refusal_says_what_helps() -> None:
    async with serving(
        dispatcher=dispatcher(said("x")), model=chat_model(PLAIN), tool_parser="none"
    ) as gateway:
        response = await gateway.chat(tools=[WEATHER])
    script = said(call_text("get_weather", PARIS))
    async with serving(
        dispatcher=dispatcher(script), model=chat_model(PLAIN), tool_parser="hermes"
    ) as gateway:
        told = await gateway.chat(tools=[WEATHER])

    error = error_of(response)
    assert error["param"] == "tools" and "gateway.tool_parser" in error["message"]
    assert told.json()["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_rule_that_would_forbid_calls_is_refused() -> None:
    model = chat_model(PLAIN)
    anything = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    async with serving(
        dispatcher=dispatcher(said("x")), model=model, tool_parser="gemma"
    ) as gateway:
        response = await gateway.chat(tools=[anything], response_format={"type": "json_object"})

    assert error_of(response)["param"] == "response_format"
