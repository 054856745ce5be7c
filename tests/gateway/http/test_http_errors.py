"""Every mistake a client can make over HTTP, and every failure it can meet."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from tests.gateway.scripted import (
    MODEL,
    Script,
    error_of,
    events_of,
    make_model,
    serving,
    tokenizer_json,
    tokens_of,
)
from tokenizers import Tokenizer, normalizers

from baton.core.errors import DeadlineExceeded, InvalidRequest, Overloaded, Unavailable
from baton.gateway.text.tokenizer import TextTokenizer


@pytest.mark.parametrize(
    ("path", "prompt", "field"),
    [("/v1/completions", "prompt", "n"), ("/v1/embeddings", "input", "priority")],
)
async def test_integers_that_are_no_floats_are_out_of_range(
    path: str, prompt: str, field: str
) -> None:
    async with serving() as gateway:
        for value in (10**400, -(10**400)):
            data = f'{{"{prompt}": "x", "{field}": {value}}}'
            response = await gateway.http.post(path, content=data)
            assert response.status_code == 400, response.text
            assert error_of(response)["param"] == field


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nonsense",
        b"[1]",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": 1e999}',
        b"[" * 100_000,
        b'{"prompt":' * 50_000,
    ],
)
async def test_what_is_not_json_is_refused(data: bytes) -> None:
    async with serving() as gateway:
        response = await gateway.http.post("/v1/completions", content=data)

    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


async def test_who_asks_a_wrong_path_or_in_a_wrong_way_is_told_the_right_one() -> None:
    async with serving() as gateway:
        for path, meant in (
            ("/chat/completions", "/v1/chat/completions"),
            ("/v1/v1/models", "/v1/models"),
            ("/v1/chat/completion", "/v1/chat/completions"),
        ):
            response = await gateway.http.post(path, json={})
            assert response.status_code == 404
            assert f"did you mean {meant}?" in error_of(response)["message"]
        response = await gateway.http.get("/v1/completions")
        assert response.status_code == 405
        assert "use POST" in error_of(response)["message"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("embeddings", {"input": "x", "encoding_format": "hex"}, "known are base64, float"),
        ("completions", {"prompt": "x", "logit_bias": {"a": 1}}, "a key of logit_bias: Expected"),
        ("completions", {"prompt": "x", "priority": 1 << 31}, "at most 2147483647; got 2147483648"),
    ],
)
async def test_a_refusal_says_where_it_is_and_what_there_is(
    path: str, body: dict[str, Any], message: str
) -> None:
    async with serving() as gateway:
        response = await gateway.http.post(f"/v1/{path}", json=body)

    assert response.status_code == 400
    assert message in error_of(response)["message"]


async def test_an_unknown_model_is_not_found() -> None:
    async with serving() as gateway:
        responses = [
            await gateway.http.post("/v1/completions", json={"model": "gpt-9", "prompt": "x"}),
            await gateway.chat(model="gpt-9"),
            await gateway.http.get("/v1/models/gpt-9"),
        ]

    for response in responses:
        assert response.status_code == 404
        error = error_of(response)
        assert error["code"] == "model_not_found"
        assert error["param"] == "model"
        assert MODEL in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": [5] * 100}, "prompt"),
        ({"prompt": [5] * 1000, "max_tokens": 1}, "prompt"),
        ({"prompt": [5] * 90, "max_tokens": 11}, "max_tokens"),
    ],
)
async def test_what_exceeds_the_context_says_so(body: dict[str, Any], param: str) -> None:
    async with serving() as gateway:
        response = await gateway.complete(**body)

    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == param
    assert "100" in error["message"]


async def test_a_long_chat_exceeds_the_context_too() -> None:
    async with serving() as gateway:
        error = error_of(await gateway.chat("word " * 200))

    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize("text", ["word " * 20_000, "a" * 100_000, " " * 100_000])
async def test_a_text_far_too_long_is_refused_before_all_of_it_is_tokens(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    encode = TextTokenizer.encode

    def watched(self: TextTokenizer, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        lengths.append(len(text))
        return encode(self, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(TextTokenizer, "encode", watched)
    async with serving() as gateway:
        errors = [
            error_of(await gateway.complete(prompt=text)),
            error_of(await gateway.chat(text)),
        ]

    assert [error["code"] for error in errors] == ["context_length_exceeded"] * 2
    assert [error["param"] for error in errors] == ["prompt", "messages"]
    assert max(lengths) < len(text) / 2


async def test_a_long_text_of_few_tokens_is_read_to_its_end() -> None:
    blank = Tokenizer.from_str(tokenizer_json())
    blank.normalizer = normalizers.Strip()
    model = replace(make_model(), tokenizer=TextTokenizer(blank.to_str()))

    async with serving(model=model) as gateway:
        response = await gateway.complete(prompt=" " * 100_000 + "fox")

    assert response.status_code == 200
    assert gateway.dispatcher.generations[0].prompt[1:] == tuple(tokens_of("fox"))


async def test_more_messages_than_any_chat_has_are_refused() -> None:
    messages = [{"role": "user", "content": "x"}] * 2049
    async with serving() as gateway:
        response = await gateway.http.post("/v1/chat/completions", json={"messages": messages})

    assert response.status_code == 400
    assert error_of(response)["param"] == "messages"


async def test_a_body_that_is_announced_too_large_is_not_read() -> None:
    async with serving(max_body_bytes=1000) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.server.http_port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n{"
        )
        head = await reader.readuntil(b"\r\n\r\n")  # not one more byte is needed
        body = await reader.readuntil(b"}}")
        writer.close()

    assert head.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in head
    assert json.loads(body)["error"]["code"] == "request_too_large"


@pytest.mark.parametrize("num_chunks", [11, 5000])
async def test_a_body_that_turns_out_too_large_is_refused(num_chunks: int) -> None:
    async def chunks() -> Any:
        for _ in range(num_chunks):
            yield b" " * 1000

    async with serving(max_body_bytes=10_000) as gateway:
        response = await gateway.http.post("/v1/completions", content=chunks())

    assert response.status_code == 413


async def test_a_body_that_does_not_arrive_is_not_waited_for_without_end() -> None:
    async with serving(request_timeout_s=0.05) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.server.http_port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        answer = await reader.read()  # to the end: the connection is closed
        writer.close()

    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"request_timeout"' in answer


async def test_a_body_of_just_the_limit_is_read() -> None:
    data = json.dumps({"prompt": "hi"}).encode()
    async with serving(max_body_bytes=len(data)) as gateway:
        response = await gateway.http.post("/v1/completions", content=data)

    assert response.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
        ("POST", "/v1/completions/", 404),
    ],
)
async def test_unknown_paths_and_methods_are_told_as_errors(
    method: str, path: str, status: int
) -> None:
    async with serving() as gateway:
        response = await gateway.http.request(method, path)

    assert response.status_code == status
    assert path in error_of(response)["message"]


@pytest.mark.parametrize("request_id", ["a b", "é", "x" * 129])
async def test_request_ids_that_cannot_be_headers_are_refused(request_id: str) -> None:
    async with serving() as gateway:
        response = await gateway.http.post(
            "/v1/completions", json={"prompt": "x"}, headers={b"x-request-id": request_id.encode()}
        )

    assert response.status_code == 400
    assert error_of(response)["param"] == "x-request-id"


FAILURES = [
    (Overloaded("full", retry_after_s=2.3), 429, "overloaded"),
    (Unavailable("all replicas are lost"), 503, "unavailable"),
    (DeadlineExceeded("too late"), 504, "deadline_exceeded"),
    (InvalidRequest("no", field="prompt"), 400, None),
    (RuntimeError("secret"), 500, "internal_error"),
]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize(("error", "status", "code"), FAILURES)
async def test_failures_before_the_first_token_have_a_status(
    is_streamed: bool, at_start: bool, error: Exception, status: int, code: str | None
) -> None:
    script = Script(start_error=error) if at_start else Script(error=error)
    async with serving(script) as gateway:
        response = await gateway.complete(prompt="Hello", stream=is_streamed)
        metrics = gateway.server.metrics_page()

    assert response.status_code == status
    body = error_of(response)
    assert body["code"] == code
    assert "secret" not in body["message"]
    assert response.headers.get("retry-after") == ("3" if status == 429 else None)
    assert response.headers["x-request-id"]
    assert f'method="/v1/completions",status="{status}"}} 1' in metrics


async def test_a_failure_within_a_stream_is_its_last_event() -> None:
    script = Script(tokens=tokens_of("fox"), error=Unavailable("lost"), num_before=1)
    async with serving(script) as gateway:
        response = await gateway.complete(prompt="Hello", stream=True)

    *chunks, last = events_of(response)
    assert response.status_code == 200
    assert chunks[0]["choices"][0]["text"]
    assert last["error"]["code"] == "unavailable"
    assert "[DONE]" not in response.text
    assert gateway.dispatcher.stops == [1]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_stalled_request_ends_at_the_time_limit(is_streamed: bool) -> None:
    async with serving(Script(stalls_after=0), request_timeout_s=0.05) as gateway:
        response = await gateway.complete(prompt="Hello", stream=is_streamed)

    assert response.status_code == 504
    assert gateway.dispatcher.stops == [0]


async def test_a_model_without_a_template_refuses_chats() -> None:
    async with serving(model=make_model(template=None)) as gateway:
        response = await gateway.chat()

    assert response.status_code == 400
    assert "/v1/completions" in error_of(response)["message"]


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer no"}, {"Authorization": "key"}])
async def test_without_a_key_nobody_comes_in(headers: dict[str, str]) -> None:
    async with serving(api_keys=frozenset({"key", "other"})) as gateway:
        response = await gateway.http.get("/v1/models", headers=headers)
        health = await gateway.http.get("/health", headers=headers)

    assert (response.status_code, health.status_code) == (401, 200)
    assert error_of(response)["code"] == "invalid_api_key"


async def test_each_key_opens_the_door() -> None:
    async with serving(api_keys=frozenset({"key", "other"})) as gateway:
        for key in ("key", "other"):
            response = await gateway.http.get(
                "/v1/models", headers={"Authorization": f"bearer {key}"}
            )
            assert response.status_code == 200
