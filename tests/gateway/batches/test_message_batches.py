"""/v1/messages/batches by the official `anthropic` package."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types.messages import MessageBatch
from tests.gateway.batches.batch_client import DyingDispatcher, begun, keeping, openai_of
from tests.gateway.chat_models import chat_model, dispatcher, said
from tests.gateway.http.messages.asking import BODY, anthropic_of

from baton.gateway.access.batch_config import BatchConfig
from baton.gateway.access.config import TenantConfig
from baton.gateway.batches import runner as runner_module
from baton.gateway.batches import work as work_module


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "LOOK_S", 0.02)
    monkeypatch.setattr(work_module, "LOOK_S", 0.02)


def asked(name: str, **fields: Any) -> dict[str, Any]:
    return {"custom_id": name, "params": {**BODY, **fields}}


async def ended(client: Any, batch_id: str) -> Any:
    async with asyncio.timeout(60):
        while True:
            batch = await client.messages.batches.retrieve(batch_id)
            if batch.processing_status == "ended":
                return batch
            await asyncio.sleep(0.02)


async def results_of(client: Any, batch_id: str) -> dict[str, Any]:
    results = await client.messages.batches.results(batch_id)
    return {one.custom_id: one.result async for one in results}


async def test_results_of_an_uploaded_file_are_those_of_its_requests(tmp_path: Path) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/messages", "body": BODY}
    async with keeping(tmp_path) as gateway:
        client = anthropic_of(gateway)
        lines = ["\ufeff" + json.dumps(line), "", "{no JSON"]
        batch = await begun(openai_of(gateway), lines, endpoint="/v1/messages")
        await ended(client, batch.id)

        results = await results_of(client, batch.id)

    assert results.keys() == {"a"}
    assert "not valid JSON" in results["a"].error.error.message


async def test_each_request_has_its_result_until_the_batch_is_deleted(tmp_path: Path) -> None:
    requests = [asked("a"), asked("b", temperature=-3), asked("c", stream=True)]
    async with keeping(tmp_path, dispatcher=dispatcher(said("hi")), model=chat_model()) as gateway:
        client = anthropic_of(gateway)
        asked_for = await client.messages.batches.create(requests=requests)
        batch = await ended(client, asked_for.id)
        results = await results_of(client, batch.id)
        as_openai = await openai_of(gateway).batches.retrieve(batch.id)
        await client.messages.batches.delete(batch.id)
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve(batch.id)
        files = [one async for one in openai_of(gateway).files.list()]

    assert asked_for.request_counts.processing == 3 and asked_for.results_url is None
    counts = batch.request_counts
    assert (counts.processing, counts.succeeded, counts.errored) == (0, 1, 2)
    assert results["a"].message.content[0].text == "hi"
    assert results["b"].error.error.type == "invalid_request_error"
    assert "temperature" in results["b"].error.error.message
    assert "stream" in results["c"].error.error.message
    assert as_openai.endpoint == "/v1/messages" and as_openai.status == "completed"
    assert files == []


async def test_of_a_batch_that_is_cancelled_the_rest_is_canceled(tmp_path: Path) -> None:
    dying = DyingDispatcher(num_before=2)
    settings = {"batches": BatchConfig(takeover_s=0.2, max_running=1), "model": chat_model()}
    async with keeping(tmp_path, dispatcher=dying, **settings) as gateway:
        client = anthropic_of(gateway)
        requests = [asked(name, max_tokens=3) for name in "abcd"]
        begun = await client.messages.batches.create(requests=requests)
        await asyncio.wait_for(dying.is_stuck.wait(), 120)
        with pytest.raises(anthropic.BadRequestError, match="cancel it"):
            await client.messages.batches.delete(begun.id)
        await client.messages.batches.cancel(begun.id)
        batch = await ended(client, begun.id)
        results = await results_of(client, batch.id)

    assert batch.cancel_initiated_at is not None
    counts = batch.request_counts
    assert (counts.succeeded, counts.canceled, counts.errored) == (2, 2, 0)
    assert [results[name].type for name in "abcd"] == ["succeeded"] * 2 + ["canceled"] * 2


async def test_what_did_not_run_in_time_is_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = DyingDispatcher(num_before=1)
    settings = {"batches": BatchConfig(takeover_s=0.2, max_running=1), "model": chat_model()}
    async with keeping(tmp_path, dispatcher=dying, **settings) as gateway:
        client = anthropic_of(gateway)
        requests = [asked("a", max_tokens=3), asked("b"), asked("c")]
        begun = await client.messages.batches.create(requests=requests)
        await asyncio.wait_for(dying.is_stuck.wait(), 120)
        monkeypatch.setattr(work_module.BatchWork, "_now", property(lambda self: 4e9))
        batch = await ended(client, begun.id)
        results = await results_of(client, batch.id)

    counts = batch.request_counts
    assert (counts.succeeded, counts.expired, counts.errored) == (1, 2, 0)
    assert [results[name].type for name in "abc"] == ["succeeded", "expired", "expired"]


async def test_batches_are_listed_to_their_owner_a_page_at_a_time(tmp_path: Path) -> None:
    tenants = {name: TenantConfig(api_keys=frozenset({f"key-{name}"})) for name in "ab"}
    async with keeping(
        tmp_path, dispatcher=dispatcher(said("x")), model=chat_model(), tenants=tenants
    ) as gateway:
        mine, others = (anthropic_of(gateway, api_key=f"key-{name}") for name in "ab")
        made = [(await mine.messages.batches.create(requests=[asked("a")])).id for _ in range(3)]
        newest_first = [one.id async for one in mine.messages.batches.list(limit=2)]
        before = await mine.messages.batches.list(before_id=made[0], limit=1)
        theirs = [one.id async for one in others.messages.batches.list()]
        with pytest.raises(anthropic.NotFoundError):
            await others.messages.batches.retrieve(made[0])

    assert newest_first == made[::-1] and theirs == []
    assert [one.id for one in before.data] == [made[1]] and before.has_more


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        ([], "requests needs 1"),
        ([asked("a"), asked("a")], "requests[1].custom_id"),
        ([asked("a b")], "requests[0].custom_id"),
        ([asked("a"), {"custom_id": "b", "params": [BODY]}], "requests[1].params"),
    ],
)
async def test_a_batch_that_is_none_is_refused_at_once(
    tmp_path: Path, requests: list[Any], told: str
) -> None:
    async with keeping(tmp_path, model=chat_model()) as gateway:
        with pytest.raises(anthropic.BadRequestError) as refused:
            await anthropic_of(gateway).messages.batches.create(requests=requests)

    assert told in refused.value.message


async def test_requests_may_be_written_over_several_lines(tmp_path: Path) -> None:
    written = json.dumps({"requests": [asked("a"), asked("b", temperature=-3)]}, indent=4)
    async with keeping(tmp_path, dispatcher=dispatcher(said("hi")), model=chat_model()) as gateway:
        client = anthropic_of(gateway)
        begun = await client.post(
            "/v1/messages/batches", content=written.encode(), cast_to=MessageBatch
        )
        await ended(client, begun.id)
        results = await results_of(client, begun.id)

    assert {name: result.type for name, result in results.items()} == {
        "a": "succeeded",
        "b": "errored",
    }


async def test_a_batch_that_is_refused_leaves_no_file_behind(tmp_path: Path) -> None:
    settings = {"batches": BatchConfig(max_unfinished=1), "model": chat_model()}
    dying = DyingDispatcher(num_before=0)
    async with keeping(tmp_path, dispatcher=dying, **settings) as gateway:
        client = anthropic_of(gateway)
        await client.messages.batches.create(requests=[asked("a")])
        with pytest.raises(anthropic.APIStatusError, match="max_unfinished"):
            await client.messages.batches.create(requests=[asked("b")])
        files = [one async for one in openai_of(gateway).files.list()]

    assert len(files) == 1


@pytest.mark.parametrize("path", ["messages/batches", "models", "batches"])
async def test_a_limit_of_thousands_of_digits_is_refused(tmp_path: Path, path: str) -> None:
    async with keeping(tmp_path, model=chat_model()) as gateway:
        with pytest.raises(anthropic.BadRequestError, match="limit"):
            await anthropic_of(gateway).get(f"/v1/{path}?limit=00010{'0' * 5000}", cast_to=object)
