"""Anthropic's messages as chat templates see them, and where its cache points come to stand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.chat_models import HERMES, PLAIN, chat_model, dispatcher, said
from tests.gateway.http.messages.asking import BODY, EPHEMERAL, HELLO, TOOL
from tests.gateway.scripted import serving, text_of

HOUR = {"type": "ephemeral", "ttl": "1h"}


def text(said: str, **others: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **others}


async def sent(template: str = HERMES, **body: Any) -> tuple[str, list[tuple[str, float]]]:
    """The prompt, and what of it is before each cache point, with its time to live."""
    scripted = dispatcher(said("ok"))
    async with serving(dispatcher=scripted, model=chat_model(template)) as gateway:
        response = await gateway.http.post("/v1/messages", json={**BODY, **body})
        assert response.status_code == 200, response.text
    (generation,) = scripted.generations
    prompt = generation.prompt
    points = [(text_of(prompt[: one.num_tokens]), one.ttl_s) for one in generation.cache_points]
    return text_of(prompt), points


async def test_blocks_become_messages_of_their_own() -> None:
    results = [
        {"type": "tool_result", "tool_use_id": "a", "content": [text("12 C"), text("dry")]},
        {"type": "tool_result", "tool_use_id": "b", "content": "no such city", "is_error": True},
        text("And tomorrow?"),
    ]
    answer = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        text("Let me look."),
        {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"city": "Oslo"}},
        {"type": "tool_use", "id": "b", "name": "get_weather", "input": {"city": "X"}},
    ]
    prompt, _ = await sent(
        system=[text("x-anthropic-billing-header: cch=1f;"), text("Be brief."), text("Be kind.")],
        messages=[
            {"role": "user", "content": "Hello."},
            {"role": "user", "content": [text("Weather?")]},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": results},
            {"role": "system", "content": "Be quick."},
        ],
    )

    assert prompt == (
        "<|system|>Be brief.\nBe kind.<|user|>Hello.\nWeather?<|assistant|>(Hm.)Let me look."
        '[call get_weather {"city": "Oslo"}][call get_weather {"city": "X"}]'
        "<|tool|>12 C\ndry<|tool|>Error: no such city<|user|>And tomorrow?<|system|>Be quick."
        "<|assistant|>"
    )


async def test_points_stand_behind_their_blocks() -> None:
    prompt, points = await sent(
        system=[text("Be brief.", cache_control=HOUR), text("Be kind.")],
        messages=[
            {"role": "user", "content": [text("One."), text("Two.", cache_control=EPHEMERAL)]},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": [text("Three.", cache_control=EPHEMERAL), text("Four.")]},
        ],
        cache_control=EPHEMERAL,
    )

    two = "<|system|>Be brief.\nBe kind.<|user|>One.\nTwo."
    assert points == [
        ("<|system|>Be brief.", 3600.0),
        (two, 300.0),
        (f"{two}<|assistant|>Yes.<|user|>Three.", 300.0),
        (prompt.removesuffix("<|assistant|>"), 300.0),
    ]


@pytest.mark.parametrize("template", [HERMES, PLAIN])
@pytest.mark.parametrize("system", ["Be brief.", None])
async def test_a_point_on_tools_stands_behind_all_of_them(
    template: str, system: str | None
) -> None:
    tools = [{**TOOL, "name": "first"}, {**TOOL, "cache_control": EPHEMERAL}]
    prompt, points = await sent(template, tools=tools, system=system, messages=HELLO)

    ((before, _),) = points
    assert before.count('"name"') == prompt.count('"name"')
    assert "Hello" not in before and prompt.startswith(before)
