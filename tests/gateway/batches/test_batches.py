"""Batches by the official `openai` package, on gateways that share a folder."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from openai.types import Batch
from tests.gateway.batches.batch_client import (
    CHAT,
    DyingDispatcher,
    begun,
    chat_line,
    ended,
    keeping,
    lines_of,
    openai_of,
)
from tests.gateway.http.test_scores import JUDGE
from tests.gateway.scripted import (
    MODEL,
    Script,
    make_model,
    serving,
    tokens_of,
)

from baton.core.clock import ManualClock
from baton.core.errors import Overloaded, StorageUnavailable
from baton.gateway.access.api_keys import Caller
from baton.gateway.access.batch_config import BatchConfig
from baton.gateway.access.config import TenantConfig
from baton.gateway.access.key_entry import digest_of
from baton.gateway.batches import batches as batches_module
from baton.gateway.batches import runner as runner_module
from baton.gateway.batches import work as work_module
from baton.gateway.batches.batches import Batches, NewBatch
from baton.gateway.batches.disk import Disk
from baton.gateway.batches.records import Batch as KeptBatch
from baton.gateway.batches.records import BatchOrder
from baton.gateway.batches.work import BatchWork
from baton.gateway.batches.work_folder import WorkFolder
from baton.gateway.requests.readiness import NOBODY
from baton.gateway.storage.folder import StorageFolder
from baton.gateway.storage.storage import Storage


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "LOOK_S", 0.02)
    monkeypatch.setattr(work_module, "LOOK_S", 0.02)


async def test_a_batch_that_goes_while_all_are_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = Batches.ids

    async def with_one_more(self: Batches, owner: str) -> list[str]:
        return [*await ids(self, owner), "batch_gone"]

    monkeypatch.setattr(Batches, "ids", with_one_more)
    async with keeping(tmp_path) as gateway:
        client = openai_of(gateway)
        batch = await begun(client, [chat_line("a")])

        assert [one.id async for one in client.batches.list()] == [batch.id]


class EndingFolder(WorkFolder):
    def state(self, order: BatchOrder) -> KeptBatch:
        self.remove(order.batch.id)  # what it came to was kept before
        return super().state(order)


async def test_a_batch_that_ends_while_it_is_looked_for_is_told_as_it_ended(tmp_path: Path) -> None:
    storage, disk = Storage(StorageFolder(tmp_path / "kept", 1 << 20)), Disk()
    folder = EndingFolder(tmp_path / "work")
    batches = Batches(storage, folder, disk, model=MODEL, config=BatchConfig())
    asked = NewBatch(endpoint=CHAT, input_file_id="file-1", metadata=None, output_ttl_s=60)
    batch = await batches.create(asked, Caller(owner="me"))
    batch.become("completed", 2e9)
    await batches.keep(batch, "me")

    assert (await batches.get(batch.id, "me")).status == "completed"
    await storage.close()
    disk.close()


async def test_lines_are_answered_and_bad_ones_are_told_apart(tmp_path: Path) -> None:
    script = Script(tokens=tokens_of("the fox"))
    lines = [
        chat_line("a", store=True),
        chat_line("b", temperature=-3),
        chat_line("c", stream=True),
    ]
    async with keeping(tmp_path, script=script) as gateway:
        client = openai_of(gateway)
        batch = await ended(client, await begun(client, lines))
        answers = await lines_of(client, batch.output_file_id)
        failures = await lines_of(client, batch.error_file_id)
        listed = [one.id async for one in client.batches.list()]
        files = [one async for one in client.files.list(purpose="batch")]
        await client.files.delete(files[0].id)
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(files[0].id)

    assert batch.status == "completed" and batch.metadata == {"for": "me"}
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 3, "completed": 1, "failed": 2}
    response = answers["a"]["response"]
    assert response["status_code"] == 200
    assert response["body"]["choices"][0]["message"]["content"] == "the fox"
    assert response["ignored_fields"] == ["store"]
    by_field = {name: line["response"]["body"]["error"]["param"] for name, line in failures.items()}
    assert by_field == {"b": "temperature", "c": "stream"}
    assert listed == [batch.id] and len(files) == 1


@pytest.mark.parametrize(
    ("endpoint", "body", "answered"),
    [
        ("/v1/rerank", {"query": "x", "documents": ["a", "b"]}, "results"),
        ("/v1/score", {"text_1": "x", "text_2": ["a", "b"]}, "data"),
        ("/v1/classify", {"input": ["a", "b"]}, "data"),
    ],
)
async def test_lines_may_ask_for_scores_and_labels(
    tmp_path: Path, endpoint: str, body: dict[str, Any], answered: str
) -> None:
    line = {"method": "POST", "url": endpoint}
    lines = [{**line, "custom_id": "a", "body": body}, {**line, "custom_id": "b", "body": {}}]
    async with keeping(tmp_path, model=JUDGE) as gateway:
        client = openai_of(gateway)
        batch = await ended(client, await begun(client, lines, endpoint=endpoint))
        answers = await lines_of(client, batch.output_file_id)
        failures = await lines_of(client, batch.error_file_id)

    assert batch.endpoint == endpoint
    assert len(answers["a"]["response"]["body"][answered]) == 2
    assert failures["b"]["response"]["status_code"] == 400
    priorities = {generation.priority for generation in gateway.dispatcher.generations}
    assert len(priorities) == 1 and priorities.pop() > 0


async def test_a_file_that_cannot_be_a_batch_fails_with_its_lines(tmp_path: Path) -> None:
    other = {**chat_line("a"), "url": "/v1/embeddings"}
    async with keeping(tmp_path) as gateway:
        client = openai_of(gateway)
        batch = await ended(
            client, await begun(client, [chat_line("a"), "{", "", other, chat_line("a")])
        )

    assert batch.status == "failed" and batch.errors is not None and batch.errors.data is not None
    assert [(one.line, one.code) for one in batch.errors.data] == [
        (2, "invalid_json_line"),
        (4, "mismatched_url"),
        (5, "duplicate_custom_id"),
    ]
    assert gateway.dispatcher.generations == []


async def test_another_gateway_goes_on_where_one_died(tmp_path: Path) -> None:
    """The first is stopped as a crash does it: nothing is told, and its lease is not left."""
    dying = DyingDispatcher(num_before=5)
    lines = [chat_line(f"line {i}") for i in range(12)]
    settings = {"batches": BatchConfig(takeover_s=0.2, max_running=1)}
    async with keeping(tmp_path, dispatcher=dying, **settings) as first:
        batch = await begun(openai_of(first), lines)
        await asyncio.wait_for(dying.is_stuck.wait(), 120)
        for lease in tmp_path.rglob("lease.1"):
            lease.with_name("kept").write_bytes(lease.read_bytes())
    for lease in tmp_path.rglob("lease.1"):
        lease.with_name("kept").rename(lease)
    async with keeping(tmp_path, **settings) as second:
        client = openai_of(second)
        batch = await ended(client, batch)
        answers = await lines_of(client, batch.output_file_id)

    assert batch.status == "completed" and batch.error_file_id is None
    assert list(answers) == [line["custom_id"] for line in lines]
    assert len(dying.generations) == 6
    assert len(second.dispatcher.generations) == 12 - 5


async def test_an_end_that_could_not_be_kept_is_kept_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, fails = batches_module.Batches.keep, [StorageUnavailable("a disk is away")]

    async def keep_later(self: Any, batch: Any, owner: str) -> None:
        if fails:
            raise fails.pop()
        await keep(self, batch, owner)

    monkeypatch.setattr(batches_module.Batches, "keep", keep_later)
    monkeypatch.setattr(runner_module, "NEVER", replace(runner_module.NEVER, again_s=0.01))
    async with keeping(tmp_path) as gateway:
        client = openai_of(gateway)
        batch = await ended(client, await begun(client, [chat_line("one")]))
        names = [one.filename async for one in client.files.list()]

    assert batch.status == "completed"
    assert sorted(names) == [f"{batch.id}_output.jsonl", "in.jsonl"]


@pytest.mark.wide
async def test_tenants_see_only_their_own_and_keep_half_of_their_limits(tmp_path: Path) -> None:
    tenants = {
        "a": TenantConfig(api_keys=frozenset({"key-a"}), requests_per_second=4),
        "b": TenantConfig(api_keys=frozenset({"key-b"})),
    }
    clock = ManualClock(100.0)  # no limit grows of itself
    async with keeping(tmp_path, tenants=tenants, clock=clock) as gateway:
        mine, others = openai_of(gateway, "key-a"), openai_of(gateway, "key-b")
        batch = await begun(mine, [chat_line(str(i), priority=-3) for i in range(4)])
        for ask in (
            others.batches.retrieve(batch.id),
            others.batches.cancel(batch.id),
            others.files.content(batch.input_file_id),
        ):
            with pytest.raises(openai.NotFoundError):
                await ask
        assert [one.id async for one in others.batches.list()] == []
        with pytest.raises(openai.BadRequestError):
            await begun_with(others, batch.input_file_id)
        while len(gateway.dispatcher.generations) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        num_at_once = len(gateway.dispatcher.generations)
        headers = {"authorization": "Bearer key-a"}
        asked = {"model": MODEL, "prompt": "hi"}
        meanwhile = await gateway.http.post("/v1/completions", json=asked, headers=headers)
        clock.advance(10)
        batch = await ended(mine, batch)

    assert num_at_once == 2
    assert meanwhile.status_code == 200
    assert batch.request_counts is not None and batch.request_counts.completed == 4
    assert {one.tenant for one in gateway.dispatcher.generations} == {"a"}
    assert gateway.dispatcher.generations[0].priority == (1 << 31) - 1


async def test_a_batch_whose_owners_key_is_gone_keeps_no_other_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "MAX_BATCHES", 1)
    monkeypatch.setattr(runner_module, "NEVER", replace(runner_module.NEVER, again_s=0.01))
    tenants = {name: TenantConfig(api_keys=frozenset({f"key-{name}"})) for name in "ab"}
    script = Script(start_error=Overloaded("full", retry_after_s=0.05))
    async with keeping(tmp_path, tenants=tenants, script=script) as gateway:
        first = await begun(openai_of(gateway, "key-a"), [chat_line("a")])
        while not gateway.dispatcher.generations:
            await asyncio.sleep(0.01)
        second = await begun(openai_of(gateway, "key-b"), [chat_line("b")])
        config = gateway.server._gateway.config
        without = msgspec.structs.replace(config, tenants={"b": tenants["b"]})
        gateway.server.reconfigure(without, NOBODY)
        script.start_error = None
        second = await ended(openai_of(gateway, "key-b"), second)
        gateway.server.reconfigure(config, NOBODY)
        first = await ended(openai_of(gateway, "key-a"), first)

    assert (first.status, second.status) == ("completed", "completed")
    assert first.completed_at is not None and second.completed_at is not None
    assert gateway.dispatcher.generations[-1].tenant == "a"


async def test_a_batch_may_use_the_models_of_the_key_that_asked_for_it(tmp_path: Path) -> None:
    """Whichever key of its tenant is there when it runs; operators have none, and no owner."""
    narrow = f"sha256:{digest_of('narrow').hex()} models=small"
    other = f"sha256:{digest_of('other').hex()} models=org/large"
    operator = f"sha256:{digest_of('operator').hex()} models=small"
    keys: dict[str, Any] = {
        "tenants": {"a": TenantConfig(api_keys=frozenset({"wide", narrow, other}))},
        "operator_keys": frozenset({operator}),
    }
    model = replace(make_model(), aliases=("small",))
    lines = [chat_line("a"), chat_line("b", model="small")]
    async with keeping(tmp_path, model=model, **keys) as gateway:
        done, statuses = [], []
        for key in ("narrow", "operator"):
            client = openai_of(gateway, key)
            batch = await ended(client, await begun(client, lines))
            done.append(set(await lines_of(client, batch.output_file_id)))
            failures = await lines_of(client, batch.error_file_id)
            statuses.append(failures["a"]["response"]["status_code"])
        wide = openai_of(gateway, "wide")
        whole = await ended(wide, await begun(wide, lines))
        with pytest.raises(openai.PermissionDeniedError):
            await begun(openai_of(gateway, "other"), lines)

    assert done == [{"b"}, {"b"}] and statuses == [403, 403]
    assert whole.request_counts is not None and whole.request_counts.completed == 2


async def begun_with(client: openai.AsyncOpenAI, file_id: str) -> Batch:
    return await client.batches.create(
        input_file_id=file_id, endpoint=CHAT, completion_window="24h"
    )


async def test_a_cancelled_batch_gives_what_it_has(tmp_path: Path) -> None:
    dying = DyingDispatcher(num_before=2)
    settings = {"batches": BatchConfig(max_running=1)}
    async with keeping(tmp_path, dispatcher=dying, **settings) as gateway:
        client = openai_of(gateway)
        batch = await begun(client, [chat_line(str(i)) for i in range(9)])
        await asyncio.wait_for(dying.is_stuck.wait(), 120)
        cancelling = await client.batches.cancel(batch.id)
        batch = await ended(client, cancelling)
        answers = await lines_of(client, batch.output_file_id)
        again = await client.batches.cancel(batch.id)

    assert (cancelling.status, batch.status, again.status) == (
        "cancelling",
        "cancelled",
        "cancelled",
    )
    assert sorted(answers) == ["0", "1"]
    assert batch.request_counts is not None and batch.request_counts.completed == 2


def test_a_refused_line_waits_longer_each_time_however_soon_it_may_ask_again() -> None:
    waits = [work_module.refusal_wait_s(0.0, num_before) for num_before in range(6)]
    assert waits[0] > 0 and waits == sorted(set(waits))
    assert work_module.refusal_wait_s(0.0, 10**6) == work_module.MOST_REFUSED_AGAIN_S
    assert work_module.refusal_wait_s(7.5, 0) == 7.5
    assert work_module.refusal_wait_s(1e9, 0) == work_module.AGAIN_S


@pytest.mark.wide
async def test_a_refused_line_is_tried_again_until_the_window_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(start_error=Overloaded("full", retry_after_s=0.0))
    async with keeping(tmp_path, script=script) as gateway:
        began = time.time()

        def now(work: BatchWork) -> float:
            """The window is over after a second, but not before the line was tried again."""
            is_over = time.time() > began + 1 and len(gateway.dispatcher.generations) > 1
            return time.time() + is_over * batches_module.WINDOW_S

        monkeypatch.setattr(BatchWork, "_now", property(now))
        client = openai_of(gateway)
        batch = await ended(client, await begun(client, [chat_line("a")]))
        failures = await lines_of(client, batch.error_file_id)

    assert batch.status == "expired"
    assert len(gateway.dispatcher.generations) < 10  # however soon it may ask again
    assert failures["a"]["error"]["code"] == "batch_expired"
    assert failures["a"]["response"] is None


async def test_without_a_folder_it_is_said_what_is_missing() -> None:
    async with serving() as gateway:
        answer = await gateway.http.get("/v1/batches")

    assert answer.status_code == 400
    assert "gateway.storage" in answer.text
