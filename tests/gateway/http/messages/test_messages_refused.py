"""What /v1/messages refuses, by the path of what is wrong; and what its errors look like."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import pytest
from tests.gateway.chat_models import chat_model, dispatcher, said
from tests.gateway.http.messages.asking import BODY, EPHEMERAL, HELLO, TOOL, anthropic_of
from tests.gateway.scripted import Script, ScriptedDispatcher, serving, tokens_of

from baton.core.errors import BatonError, DeadlineExceeded, Overloaded, Unavailable
from baton.gateway.access.config import TenantConfig

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
CALL = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
ANSWERED = {"type": "tool_result", "tool_use_id": "c", "content": [IMAGE]}


def of_user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*blocks]}]}


WRONG: dict[str, dict[str, Any]] = {
    "messages": {"messages": []},
    "messages[0].role": {"messages": [{"role": "narrator", "content": "x"}]},
    "messages[0].content": of_user(),
    "messages[0].content[0].type": of_user(IMAGE),
    "messages[0].content[1].type": of_user({"type": "text", "text": "x"}, CALL),
    "messages[0].content[0].content[0].type": of_user(ANSWERED),
    "messages[0].content[0].text": of_user({"type": "text"}),
    "messages[0].content[0].tool_use_id": of_user({"type": "tool_result"}),
    "messages[1]": {"messages": [*HELLO, {"role": "assistant", "content": [CALL]}]},
    "messages[1].content[0].input": {
        "messages": [*HELLO, {"role": "assistant", "content": [{**CALL, "input": None}]}]
    },
    "messages[0].content[4].cache_control": of_user(
        *[{"type": "text", "text": "x", "cache_control": EPHEMERAL}] * 5
    ),
    "system[0].type": {"system": [IMAGE]},
    "tools[0].type": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    "tools[0].input_schema": {"tools": [{"name": "f"}]},
    "tool_choice": {"tool_choice": {"type": "any"}},
    "tool_choice.type": {"tool_choice": {"type": "required"}},
    "thinking.type": {"thinking": {"type": "deep"}},
    "thinking.display": {"thinking": {"type": "adaptive", "display": "loud"}},
    "output_config.format.type": {"output_config": {"format": {"type": "yaml"}}},
    "stop": {"stop": ["x"]},
    "stop_sequences[0]": {"stop_sequences": [""]},
    "max_tokens": {"max_tokens": 0},
    "n": {"n": 2},
    "response_format": {"response_format": {"type": "json_object"}},
    "mcp_servers": {"mcp_servers": [{"type": "url", "url": "x", "name": "y"}]},
    "context_management.edits[0]": {
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}
    },
}


async def test_each_mistake_is_named_with_its_path_whatever_is_asked() -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model()) as gateway:
        for field, body in WRONG.items():
            response = await gateway.http.post("/v1/messages", json={**BODY, **body})
            error = error_in(response)
            assert (response.status_code, error["type"]) == (400, "invalid_request_error"), field
            assert error["message"].startswith(field.partition(".type")[0]), (field, error)

    assert gateway.dispatcher.generations == []


def error_in(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
    assert set(body["error"]) == {"type", "message"}
    assert body["request_id"] == response.headers["request-id"]
    error: dict[str, Any] = body["error"]
    return error


async def test_what_asks_for_nothing_is_not_refused() -> None:
    thinking = {"type": "clear_thinking_20251015", "keep": "all"}
    body = {
        **BODY,
        "context_management": {"edits": [thinking]},
        "mcp_servers": [],
        "betas": ["x"],
        "container": None,
        "service_tier": "auto",
        "response_format": {},
    }
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model()) as gateway:
        response = await gateway.http.post("/v1/messages?beta=true", json=body)

    assert response.status_code == 200 and response.headers["x-baton-ignored"] == "betas"


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'{"messages": 1}', b"[" * 100_000])
async def test_garbage_is_refused_in_its_shape(data: bytes) -> None:
    async with serving() as gateway:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            response = await gateway.http.post(path, content=data)
            assert (response.status_code, error_in(response)["type"]) == (
                400,
                "invalid_request_error",
            )


@pytest.mark.parametrize(
    ("failure", "kind", "error_type"),
    [
        (Overloaded("full", retry_after_s=2.5), anthropic.OverloadedError, "overloaded_error"),
        (Unavailable("lost"), anthropic.ServiceUnavailableError, "api_error"),
        (DeadlineExceeded("late"), anthropic.GatewayTimeoutError, "timeout_error"),
        (RuntimeError("secret"), anthropic.InternalServerError, "api_error"),
    ],
)
async def test_each_failure_is_the_exception_of_its_package(
    failure: Exception, kind: type[anthropic.APIStatusError], error_type: str
) -> None:
    script = Script(start_error=failure)
    async with serving(dispatcher=dispatcher(script), model=chat_model()) as gateway:
        for is_streamed in (False, True):
            with pytest.raises(kind) as caught:
                await anthropic_of(gateway).messages.create(**BODY, stream=is_streamed)
            assert caught.value.type == error_type
            assert caught.value.request_id and "secret" not in str(caught.value)
            if isinstance(failure, Overloaded):
                assert caught.value.response.headers["retry-after"] == "3"


async def test_mistakes_are_the_exceptions_of_its_package() -> None:
    tenant = TenantConfig(api_keys=frozenset({"k"}), requests_per_minute=1)
    long = [{"role": "user", "content": "Hello " * 500}]
    async with serving(
        dispatcher=dispatcher(said("x")), model=chat_model(), tenants={"acme": tenant}
    ) as gateway:
        mine, bearer = anthropic_of(gateway, api_key="k"), anthropic_of(gateway, auth_token="k")
        for client in (anthropic_of(gateway, api_key="wrong"), anthropic_of(gateway)):
            with pytest.raises(anthropic.AuthenticationError):
                await client.messages.create(**BODY)
        with pytest.raises(anthropic.PermissionDeniedError, match="priority"):
            await mine.messages.create(**BODY, extra_body={"priority": -5})
        with pytest.raises(anthropic.NotFoundError, match="model"):
            await mine.messages.create(**{**BODY, "model": "claude"})
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await mine.messages.create(**{**BODY, "messages": long * 50})
        await mine.messages.create(**BODY)
        await bearer.messages.count_tokens(model=BODY["model"], messages=HELLO)
        with pytest.raises(anthropic.RateLimitError) as limited:
            await bearer.messages.create(**BODY)
        missing = await gateway.http.get("/v1/messages/x", headers={"x-api-key": "k"})
        method = await gateway.http.get("/v1/messages", headers={"x-api-key": "k"})

    assert limited.value.type == "rate_limit_error"
    assert int(limited.value.response.headers["retry-after"]) > 0
    assert (missing.status_code, error_in(missing)["type"]) == (404, "not_found_error")
    assert (method.status_code, error_in(method)["type"]) == (405, "invalid_request_error")


@pytest.mark.parametrize("failure", [Unavailable("lost"), Overloaded("full")])
async def test_a_stream_that_breaks_says_so(failure: BatonError) -> None:
    script = Script(tokens=tokens_of("the quick brown fox"), error=failure, num_before=3)
    scripted = ScriptedDispatcher(script, max_model_len=4096)
    async with serving(dispatcher=scripted, model=chat_model()) as gateway:
        response = await gateway.http.post("/v1/messages", json={**BODY, "stream": True})
        stream = await anthropic_of(gateway).messages.create(**BODY, stream=True)
        with pytest.raises(anthropic.APIStatusError, match=str(failure)):
            async for _ in stream:
                pass

    name, data = response.text.strip().split("\n\n")[-1].split("\n")
    assert name == "event: error"
    told = json.loads(data.removeprefix("data: "))
    kind = "overloaded_error" if isinstance(failure, Overloaded) else "api_error"
    assert told["error"] == {"type": kind, "message": str(failure)}
    assert told["request_id"] == response.headers["request-id"]


async def test_unknown_fields_are_refused_where_that_is_set() -> None:
    body = {**BODY, "tools": [{**TOOL, "mood": 1}]}
    async with serving(model=chat_model(), unknown_fields="refuse") as gateway:
        response = await gateway.http.post("/v1/messages", json=body)

    assert response.status_code == 400 and "tools[0].mood" in error_in(response)["message"]
