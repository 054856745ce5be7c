"""vLLM's options do the same on /v1/responses and /v1/messages as on chats."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.gateway.chat_models import HERMES, THINKING, USER, chat_model, dispatcher, said
from tests.gateway.scripted import (
    EOS,
    Script,
    ScriptedDispatcher,
    Serving,
    eos_token,
    error_of,
    serving,
    text_of,
    tokens_of,
)

from baton.gateway.http.edge import IGNORED

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/responses": {"input": USER[0]["content"]},
    "/v1/messages": {"messages": USER, "max_tokens": 50},
}
SWITCHED = HERMES + "{% if enable_thinking is false %}[no thoughts]{% endif %}{{ documents }}"


async def ask(gateway: Serving, path: str, **fields: Any) -> httpx.Response:
    response = await gateway.http.post(path, json={**BODIES[path], **fields})
    assert response.status_code == 200, response.text
    return response


def answer_text(answer: dict[str, Any]) -> str:
    match answer:
        case {"choices": [{"message": {"content": str(text)}}]}:
            return text
        case {"output": [*_, {"content": [{"text": str(text)}]}]}:
            return text
        case {"content": [*_, {"text": str(text)}]}:
            return text
    raise AssertionError(answer)


@pytest.mark.parametrize("path", BODIES)
async def test_the_text_holds_what_is_asked_to_show(path: str) -> None:
    script = Script(tokens=[*tokens_of("one"), eos_token(), *tokens_of(" two. three")])
    stop = {"stop_sequences" if path == "/v1/messages" else "stop": [". t"]}
    async with serving(
        dispatcher=ScriptedDispatcher(script, max_model_len=4096), model=chat_model()
    ) as gateway:
        plain = await ask(gateway, path, ignore_eos=True, **stop)
        whole = await ask(
            gateway, path, ignore_eos=True, **stop,
            skip_special_tokens=False, include_stop_str_in_output=True,
        )  # fmt: skip

    texts = [answer_text(response.json()) for response in (plain, whole)]
    assert texts == ["one two", f"one{EOS} two. t"]


@pytest.mark.parametrize("path", BODIES)
async def test_prompts_and_grammars_are_those_of_chats(path: str) -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(SWITCHED)) as gateway:
        await ask(gateway, path, truncate_prompt_tokens=2, seed=7, min_p=0.5)
        await ask(gateway, path, guided_choice=["yes", "no"], enable_thinking=False)
        await ask(gateway, path, structured_outputs={"choice": ["yes", "no"]})
        await ask(gateway, path, documents=[{"text": "of Paris"}])
        both = await gateway.http.post(
            path, json={**BODIES[path], "guided_regex": "a", "structured_outputs": {"regex": "a"}}
        )
        short, old, new, shown = gateway.dispatcher.generations

    assert len(short.prompt) == 2 and short.sampling.seed == 7 and short.sampling.min_p == 0.5
    assert old.sampling.grammar is not None and old.sampling.grammar == new.sampling.grammar
    assert "[no thoughts]" in text_of(old.prompt) and "of Paris" in text_of(shown.prompt)
    assert both.status_code == 400 and "exclude each other" in both.text


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_token_ids_receipt_and_id_are_told_whole_and_streamed(path: str) -> None:
    async with serving(dispatcher=dispatcher(said("hi")), model=chat_model()) as gateway:
        asked = {"return_token_ids": True, "receipt": True, "request_id": "mine", "store": False}
        asked |= {"store": None} if path == "/v1/messages" else {}
        whole = (await ask(gateway, path, **asked)).json()
        stream = (await ask(gateway, path, stream=True, **asked)).text
        prompts = {tuple(generation.prompt) for generation in gateway.dispatcher.generations}

    assert {tuple(whole["prompt_token_ids"])} == prompts
    assert whole["token_ids"] == [*tokens_of("hi"), eos_token()]
    assert whole["baton"]["decode_replica"] and whole["id"].endswith("_mine")
    told = str(whole["token_ids"]).replace(" ", "")
    assert f'"token_ids":{told}' in stream and '"prompt_token_ids":[' in stream


async def test_a_response_leaves_its_reasoning_out_if_asked_to() -> None:
    script = said("<think>\nhm</think>yes")
    async with serving(dispatcher=dispatcher(script), model=chat_model(THINKING)) as gateway:
        shown = await ask(gateway, "/v1/responses")
        hidden = [
            await ask(gateway, "/v1/responses", **fields)
            for fields in ({"include_reasoning": False}, {"reasoning": {"exclude": True}})
        ]

    assert [item["type"] for item in shown.json()["output"]] == ["reasoning", "message"]
    for response in hidden:
        assert [item["type"] for item in response.json()["output"]] == ["message"]
        assert response.json()["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


async def test_includes_that_nothing_comes_of_are_told_or_refused() -> None:
    include = ["reasoning.encrypted_content", "message.output_text.logprobs", "a\nb"]
    told = "include[reasoning.encrypted_content], include[a?b]"
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model()) as gateway:
        response = await ask(gateway, "/v1/responses", include=include)
    async with serving(model=chat_model(), unknown_fields="refuse") as gateway:
        body = {"input": "x", "include": include}
        refused = await gateway.http.post("/v1/responses", json=body)

    assert response.headers[IGNORED] == told
    assert error_of(refused)["param"] == "include[reasoning.encrypted_content]"


async def test_ignored_fields_within_others_are_told() -> None:
    tool = {"name": "f", "input_schema": {"type": "object"}, "defer_loading": True}
    body = {
        "tools": [tool, {**tool, "name": "g"}],
        "output_config": {"task_budget": {"type": "tokens", "total": 9}},
        "fallbacks": [{"model": "x"}],
        "metadata": {"user_id": "u"},
    }
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model()) as gateway:
        response = await ask(gateway, "/v1/messages", **body)

    told = set(response.headers[IGNORED].split(", "))
    assert told == {"fallbacks", "tools[].defer_loading", "output_config.task_budget", "metadata"}


async def test_web_pages_may_read_what_was_ignored() -> None:
    origin = "https://app.example"
    async with serving(
        dispatcher=dispatcher(said("x")), model=chat_model(), cors_origins=(origin,)
    ) as gateway:
        response = await gateway.http.post(
            "/v1/responses", json={"input": "x"}, headers={"origin": origin}
        )

    exposed = response.headers["access-control-expose-headers"]
    assert "x-baton-ignored" in exposed and "x-baton-tool-format" in exposed
