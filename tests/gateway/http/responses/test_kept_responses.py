"""Responses with state: the next turn brings what is new, and asks for the same tokens."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.gateway.chat_models import (
    HERMES,
    PARIS,
    WEATHER,
    call_text,
    chat_model,
    dispatcher,
    openai_of,
    said,
)
from tests.gateway.scripted import (
    MODEL,
    ScriptedDispatcher,
    Serving,
    error_of,
    serving,
    text_of,
    tokens_of,
)

from baton.gateway.access.config import TenantConfig
from baton.gateway.storage.config import StorageConfig

FLAT_WEATHER = {"type": "function", **WEATHER["function"]}
LOOK = f"<think>\nHm.</think>\nLet me look. {call_text('get_weather', PARIS)}"
THINKING = HERMES + "{% if add_generation_prompt %}<think>\n{% endif %}"


def kept_in(folder: Path, **settings: Any) -> dict[str, Any]:
    return {"storage": StorageConfig(folder=str(folder), **settings)}


def answer_of(output: Any) -> dict[str, Any]:
    (call,) = (item for item in output if item.type == "function_call")
    return {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}


async def ask(gateway: Serving, is_streamed: bool, **body: Any) -> Any:
    created = await openai_of(gateway).responses.create(model=MODEL, stream=is_streamed, **body)
    return [event async for event in created][-1].response if is_streamed else created


def prompts_of(scripted: ScriptedDispatcher) -> list[str]:
    return [text_of(generation.prompt) for generation in scripted.generations]


async def test_only_what_is_not_kept_goes_on_at_another_gateway(tmp_path: Path) -> None:
    script, header = dispatcher(said("Hm.</think>Hi.")), {"x-baton-resumable": "1"}
    async with serving(
        dispatcher=script, model=chat_model(THINKING), **kept_in(tmp_path)
    ) as gateway:
        for is_kept in (True, False):
            await ask(gateway, True, input="Hello", store=is_kept, extra_headers=header)

    assert [generation.parking is None for generation in script.generations] == [True, False]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_turn_goes_on_at_another_gateway_with_the_tokens_of_all_items_sent(
    tmp_path: Path, is_streamed: bool
) -> None:
    tools = {"tools": [FLAT_WEATHER]}
    first_script, second_script = dispatcher(said(LOOK)), dispatcher(said("Sunny."))
    model = chat_model(THINKING)
    async with serving(dispatcher=first_script, model=model, **kept_in(tmp_path)) as gateway:
        first = await ask(gateway, is_streamed, input="Weather?", instructions="Be brief.", **tools)
    assert first.store and [item.type for item in first.output] == [
        "reasoning",
        "message",
        "function_call",
    ]
    async with serving(dispatcher=second_script, model=model, **kept_in(tmp_path)) as gateway:
        found = [answer_of(first.output)]
        second = await ask(
            gateway, is_streamed, input=found, previous_response_id=first.id, **tools
        )
        third = await ask(gateway, is_streamed, input="Sure?", previous_response_id=second.id)
        told = [{"role": "user", "content": "Weather?"}, *first.output, *found]
        await ask(gateway, is_streamed, input=told, store=False, **tools)
        told += [*second.output, {"role": "user", "content": "Sure?"}]
        await ask(gateway, is_streamed, input=told, store=False)
        references = [{"type": "item_reference", "id": item.id} for item in first.output]
        own = {"role": "user", "content": "Weather?"}
        await ask(gateway, is_streamed, input=[own, *references, *found], store=False, **tools)

    after_call, after_sure, whole_call, whole_sure, referred = second_script.generations
    assert after_call.prompt == whole_call.prompt == referred.prompt
    assert after_sure.prompt == whole_sure.prompt
    prompt = text_of(after_call.prompt)
    assert f"<|assistant|>(Hm.)Let me look.[call get_weather {PARIS}]<|tool|>sunny" in prompt
    assert "Be brief." in prompts_of(first_script)[0] and "Be brief." not in prompt
    assert (second.previous_response_id, third.previous_response_id) == (first.id, second.id)


async def test_what_is_kept_is_read_listed_and_deleted_with_the_openai_package(
    tmp_path: Path,
) -> None:
    scripted = dispatcher(said("Yes."))
    async with serving(dispatcher=scripted, model=chat_model(), **kept_in(tmp_path)) as gateway:
        client = openai_of(gateway)
        first = await client.responses.create(model=MODEL, input="One?", metadata={"a": "b"})
        items = [{"role": "user", "content": "Two?"}, {"role": "user", "content": "Three?"}]
        second = await client.responses.create(
            model=MODEL, input=items, previous_response_id=first.id
        )
        again = await client.responses.retrieve(second.id)
        pages = client.responses.input_items.list(second.id, limit=1, order="asc")
        listed = [item async for item in pages]
        newest = await client.responses.input_items.list(second.id)
        with pytest.raises(openai.BadRequestError, match="background"):
            await client.responses.cancel(second.id)
        with pytest.raises(openai.BadRequestError, match="cannot be streamed again"):
            await client.responses.retrieve(second.id, stream=True)
        await client.responses.delete(first.id)
        for gone in (client.responses.retrieve, client.responses.delete):
            with pytest.raises(openai.NotFoundError, match="was deleted"):
                await gone(first.id)
        third = await client.responses.create(
            model=MODEL, input="Four?", previous_response_id=second.id
        )

    assert again.to_dict() == second.to_dict()
    assert [item.content[0].text for item in listed] == ["One?", "Yes.", "Two?", "Three?"]
    assert [item.id for item in newest.data] == [item.id for item in listed][::-1]
    assert len({item.id for item in listed}) == 4 and third.store
    assert prompts_of(scripted)[-1].count("Yes.") == 2


async def test_nothing_is_kept_that_need_not_be_and_nobody_finds_what_is_anothers(
    tmp_path: Path,
) -> None:
    tenants = {name: TenantConfig(api_keys=frozenset({name})) for name in ("acme", "bell")}
    config = {"tenants": tenants, "api_keys": frozenset({"one", "two"}), **kept_in(tmp_path)}
    async with serving(
        dispatcher=dispatcher(said("Yes.")), model=chat_model(), **config
    ) as gateway:

        async def send(method: str, path: str, key: str, **body: Any) -> Any:
            headers = {"authorization": f"Bearer {key}", "x-request-id": "the-same"}
            return await gateway.http.request(method, path, headers=headers, json=body or None)

        async def turn(key: str, **body: Any) -> Any:
            return await send("POST", "/v1/responses", key, input="Hello", **body)

        unkept = (await turn("acme", store=False)).json()
        assert not unkept["store"]
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
        kept, other = (await turn("acme")).json()["id"], (await turn("acme")).json()["id"]
        assert kept != other  # whatever clients call their requests
        common = (await turn("one")).json()["id"]
        for key, found in (("bell", kept), ("two", common), ("acme", unkept["id"])):
            answer = await turn(key, previous_response_id=found)
            assert (answer.status_code, error_of(answer)["param"]) == (404, "previous_response_id")
            for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
                assert (await send(method, f"/v1/responses/{found}{path}", key)).status_code == 404
            assert (await send("POST", f"/v1/responses/{found}/cancel", key)).status_code == 404
        assert (await turn("acme", previous_response_id=kept)).status_code == 200


async def test_where_nothing_can_be_kept_turns_are_answered_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    broken, full = kept_in(tmp_path / "file"), kept_in(tmp_path / "full", max_bytes=10)
    async with AsyncExitStack() as stack:
        for config in ({}, broken, full):
            scripted = dispatcher(said("Yes."))
            gateway = await stack.enter_async_context(
                serving(dispatcher=scripted, model=chat_model(), **config)
            )
            for is_streamed in (False, True):
                answer = await ask(gateway, is_streamed, input="Hello")
                assert (answer.status, answer.store) == ("completed", False)
            page = gateway.server.metrics_page().splitlines()
            told = [line for line in page if line.startswith("baton_gateway_storage_failures_")]
            assert any(not line.endswith(" 0") for line in told) == (config is broken)
            next_turn = {"input": "Hello", "previous_response_id": answer.id}
            response = await gateway.http.post("/v1/responses", json=next_turn)
            assert response.status_code == (503 if config is broken else 404)
            asked = await gateway.http.post("/v1/responses", json={"input": "x", "store": True})
            assert asked.status_code == (200 if config else 400)


async def test_a_call_that_was_cut_short_is_not_gone_on_from(tmp_path: Path) -> None:
    text = call_text("get_weather", PARIS)
    scripted, limit = dispatcher(said(text)), len(tokens_of(text.partition("Par")[0]))
    async with serving(dispatcher=scripted, model=chat_model(), **kept_in(tmp_path)) as gateway:
        first = await ask(gateway, False, input="Hi", tools=[FLAT_WEATHER], max_output_tokens=limit)
        (cut,) = first.output
        assert (cut.type, cut.status) == ("function_call", "incomplete")
        await ask(gateway, False, input="And?", previous_response_id=first.id)

    assert prompts_of(scripted)[-1] == "<|user|>Hi<|user|>And?<|assistant|>"
