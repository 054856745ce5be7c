"""Paths and shapes that clients of OpenAI, Anthropic and vLLM look for."""

from __future__ import annotations

import base64
import math
import struct
from dataclasses import replace
from typing import Any

import pytest
from tests.gateway.chat_models import (
    USER,
    WEATHER,
    chat_model,
    dispatcher,
    openai_of,
    said,
)
from tests.gateway.http.messages.asking import BODY, TOOL, anthropic_of
from tests.gateway.http.test_scores import JUDGE
from tests.gateway.scripted import error_of, make_model, serving, text_of

from baton.gateway.http.edge import IGNORED

FLAT = {"type": "function", **WEATHER["function"]}
HOSTED = {"type": "web_search"}


async def test_anthropics_client_lists_models_as_it_knows_them() -> None:
    model = replace(make_model(), aliases=("claude", "demo"))
    async with serving(model=model) as gateway:
        client = anthropic_of(gateway)
        names = [model.id async for model in client.models.list(limit=1)]
        behind = await client.models.list(after_id=names[0])
        before = await client.models.list(before_id=names[2], limit=1)
        one = await client.models.retrieve("claude")
        plain = (await gateway.http.get("/v1/models")).json()
        wrong = await gateway.http.get(
            "/v1/models?after_id=x", headers={"anthropic-version": "2023-06-01"}
        )

    assert names == [model["id"] for model in plain["data"]] and len(names) == 3
    assert [model.id for model in behind.data] == names[1:] and not behind.has_more
    assert [model.id for model in before.data] == [names[1]] and before.has_more
    assert one.display_name == "claude"
    assert one.created_at.timestamp() == plain["data"][0]["created"]
    assert one.max_input_tokens == plain["data"][0]["max_model_len"]
    assert error_of(wrong)["param"] == "after_id"


async def test_the_tokens_of_an_input_are_those_that_its_response_has() -> None:
    asked: dict[str, Any] = {"input": "Weather in Paris?", "instructions": "Be brief."}
    asked |= {"tools": [{"type": "function", **WEATHER["function"]}], "text": {"verbosity": "low"}}
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model()) as gateway:
        client = openai_of(gateway)
        counted = await client.responses.input_tokens.count(**asked)
        response = await client.responses.create(model=None, **asked)
        short = await client.responses.input_tokens.count(
            **asked, extra_body={"truncate_prompt_tokens": 3}
        )

    assert counted.input_tokens == response.usage.input_tokens > 20
    assert short.input_tokens == 3


@pytest.mark.parametrize(
    ("path", "body", "tool", "shown"),
    [
        (
            "/v1/responses",
            {"input": "x"},
            FLAT,
            "web_search",
        ),
        ("/v1/chat/completions", {"messages": USER}, WEATHER, "web_search"),
        ("/v1/messages", BODY, TOOL, "web_search_20250305"),
    ],
)
async def test_hosted_tools_are_refused_or_left_out_as_the_operator_says(
    path: str, body: dict[str, Any], tool: dict[str, Any], shown: str
) -> None:
    asked = {**body, "tools": [{"type": shown, "name": "web_search"}, tool]}
    if path == "/v1/chat/completions":
        asked["tools"] = [{"type": shown}, tool]
    async with serving(model=chat_model()) as gateway:
        refused = await gateway.http.post(path, json=asked)
    async with serving(
        dispatcher=dispatcher(said("x")), model=chat_model(), hosted_tools="ignore"
    ) as gateway:
        answered = await gateway.http.post(path, json=asked)
        forced = {"type": "tool", "name": "web_search"} if body is BODY else HOSTED
        must = await gateway.http.post(path, json={**asked, "tool_choice": forced})
        (generation,) = gateway.dispatcher.generations

    assert refused.status_code == 400 and "gateway.hosted_tools" in refused.text
    assert answered.status_code == 200 and answered.headers[IGNORED] == f"tools[{shown}]"
    assert "get_weather" in text_of(generation.prompt)
    assert "web_search" not in text_of(generation.prompt)
    assert must.status_code == 400 and "tool_choice" in must.text


async def test_a_conversation_is_embedded_as_the_template_writes_it() -> None:
    async with serving(model=chat_model()) as gateway:
        whole = await gateway.http.post("/v1/embeddings", json={"messages": USER})
        asked = {"messages": USER, "add_generation_prompt": True}
        open_ended = await gateway.http.post("/v1/embeddings", json=asked)
        both = await gateway.http.post("/v1/embeddings", json={"messages": USER, "input": "x"})
        alone = await gateway.http.post(
            "/v1/embeddings", json={"input": "x", "chat_template_kwargs": {"a": 1}}
        )
        prompts = [text_of(generation.prompt) for generation in gateway.dispatcher.generations]

    assert whole.status_code == open_ended.status_code == 200
    assert prompts == ["<|user|>Weather in Paris?", "<|user|>Weather in Paris?<|assistant|>"]
    assert error_of(both)["param"] == "messages"
    assert error_of(alone)["param"] == "chat_template_kwargs"


async def test_pooling_answers_what_the_model_has() -> None:
    async with serving() as gateway:
        asked = {"input": ["one", "two"], "use_activation": False}
        embedded = (
            await gateway.http.post("/v1/embeddings", json={"input": ["one", "two"]})
        ).json()
        vectors = (await gateway.http.post("/pooling", json=asked)).json()
        packed = (
            await gateway.http.post("/pooling", json={"input": "one", "encoding_format": "base64"})
        ).json()
        no_labels = await gateway.http.post("/pooling", json={"input": "x", "task": "classify"})
    async with serving(model=JUDGE) as gateway:
        labels = (await gateway.http.post("/v1/pooling", json={"input": "x"})).json()
        classes = (await gateway.http.post("/v1/classify", json={"input": "x"})).json()
        cut = await gateway.http.post("/v1/pooling", json={"input": "x", "dimensions": 2})

    own = [entry["data"] for entry in vectors["data"]]
    units = [entry["embedding"] for entry in embedded["data"]]
    assert [[x / math.hypot(*v) for x in v] for v in own] == [pytest.approx(u) for u in units]
    (entry,) = packed["data"]
    raw = base64.b64decode(entry["data"])
    assert struct.unpack(f"<{len(raw) // 4}f", raw) == pytest.approx(units[0])
    assert error_of(no_labels)["param"] == "model"
    assert labels["data"][0]["data"] == classes["data"][0]["probs"]
    assert error_of(cut)["param"] == "dimensions"
