"""Responses that run without their client, on two gateways of one folder."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, patch

import openai
import pytest
from tests.gateway.chat_models import chat_model, dispatcher, openai_of, said
from tests.gateway.scripted import MODEL, Script, Serving, serving

from baton.core.clock import Clock, ManualClock, monotonic
from baton.core.errors import StorageUnavailable, Unavailable
from baton.gateway.access.config import TenantConfig
from baton.gateway.http.responses import background, sign_watch
from baton.gateway.http.responses.kept import KeptResponse, KeptResponses
from baton.gateway.storage import storage
from baton.gateway.storage.config import StorageConfig
from baton.gateway.storage.folder import StorageFolder


@asynccontextmanager
async def gateways(
    folder: Path, script: Script, clock: Clock = monotonic
) -> AsyncIterator[tuple[Serving, Any, Any]]:
    """One that runs the responses, and clients of it and of another, which has this clock, and
    whose host is ten minutes ahead."""
    ahead = partial(StorageFolder, unix_time=lambda: time.time() + 600)
    config: dict[str, Any] = {"storage": StorageConfig(folder=str(folder))}
    async with AsyncExitStack() as both:
        each = serving(dispatcher=dispatcher(script), model=chat_model(), **config)
        runs = await both.enter_async_context(each)
        each = serving(
            dispatcher=dispatcher(said("Other.")), model=chat_model(), clock=clock, **config
        )
        with patch.object(storage, "StorageFolder", ahead):
            other = await both.enter_async_context(each)
        yield runs, openai_of(runs), openai_of(other)


async def begun(client: Any, **changes: Any) -> Any:
    options = {"model": MODEL, "input": "Hello", "background": True, **changes}
    response = await client.responses.create(**options)
    assert (response.status, response.background, response.output) == ("in_progress", True, [])
    return response


async def ended(client: Any, response_id: str) -> Any:
    while (found := await client.responses.retrieve(response_id)).status == "in_progress":
        await asyncio.sleep(0.01)
    return found


def signs_in(folder: Path) -> list[Path]:
    """Signs of life in this storage."""
    return [path for path in folder.glob(f"{background.SIGN_KIND}/*/*") if path.is_file()]


def waiting(text: str) -> Script:
    script = said(text)
    script.starts = asyncio.Event()
    return script


async def test_it_is_asked_for_anywhere_and_gone_on_from_once_it_has_ended(tmp_path: Path) -> None:
    script = waiting("Yes.")
    assert script.starts is not None
    async with gateways(tmp_path, script) as (_, client, other):
        first = await begun(client)
        for each in (client, other):
            assert (await each.responses.retrieve(first.id)).status == "in_progress"
            with pytest.raises(openai.BadRequestError, match="wait until it has ended"):
                await each.responses.create(
                    model=MODEL, input="And?", previous_response_id=first.id
                )
        script.starts.set()
        found = await ended(other, first.id)
        second = await other.responses.create(
            model=MODEL, input="And?", previous_response_id=first.id
        )
        same = await other.responses.cancel(first.id)
        with pytest.raises(openai.BadRequestError, match="background: true"):
            await other.responses.cancel(second.id)

    assert (found.status, found.output_text) == ("completed", "Yes.")
    assert found.usage.output_tokens > 0 and found.store
    assert (second.status, same.to_dict()) == ("completed", found.to_dict())


@pytest.mark.parametrize("is_elsewhere", [False, True])
@pytest.mark.parametrize("way", ["cancel", "delete"])
async def test_what_is_cancelled_or_deleted_stops_where_it_runs(
    tmp_path: Path, way: str, is_elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "RENEW_S", 0.02)
    async with gateways(tmp_path, waiting("Yes.")) as (runs, client, other):
        response = await begun(client)
        while not runs.dispatcher.generations:
            await asyncio.sleep(0.01)

        await getattr((other if is_elsewhere else client).responses, way)(response.id)
        await asyncio.wait_for(runs.dispatcher.stopped.wait(), 30)

        if way == "delete":
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(response.id)
        else:
            assert (await client.responses.retrieve(response.id)).status == "cancelled"
        async with asyncio.timeout(60):
            while signs_in(tmp_path):
                await asyncio.sleep(0.01)


async def test_a_failure_is_kept_with_its_reason(tmp_path: Path) -> None:
    async with gateways(tmp_path, Script(start_error=Unavailable("no replica"))) as each:
        _, client, other = each
        found = await ended(other, (await begun(client)).id)

    assert (found.status, found.error.code) == ("failed", "unavailable")
    assert "no replica" in found.error.message


@pytest.mark.parametrize("is_killed", [False, True])
async def test_what_a_restart_interrupts_says_so(
    tmp_path: Path, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_killed:  # nobody renews the sign of life
        monkeypatch.setattr(sign_watch, "STILL_S", 0.0)
    async with gateways(tmp_path, waiting("Yes.")) as (runs, client, other):
        response = await begun(client)
        if not is_killed:
            await runs.server.stop(grace_s=0)
        found = await ended(other, response.id)

    assert (found.status, found.error.code) == ("failed", "interrupted")
    assert "send it again" in found.error.message


@pytest.mark.parametrize("is_renewed", [False, True])
async def test_who_was_thought_dead_and_lives_keeps_its_answer(
    tmp_path: Path, is_renewed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_renewed:
        monkeypatch.setattr(background, "RENEW_S", 0.02)
    script, clock = waiting("Yes."), ManualClock()
    assert script.starts is not None
    async with gateways(tmp_path, script, clock) as (_, client, other):
        response = await begun(client)
        assert (await other.responses.retrieve(response.id)).status == "in_progress"
        clock.advance(sign_watch.STILL_S)
        found = await other.responses.retrieve(response.id)
        async with asyncio.timeout(60):
            while is_renewed and found.status != "in_progress":
                found = await other.responses.retrieve(response.id)
        script.starts.set()
        while (last := await other.responses.retrieve(response.id)).status != "completed":
            await asyncio.sleep(0.01)

    assert found.status == ("in_progress" if is_renewed else "failed")
    assert last.output_text == "Yes."


@pytest.mark.parametrize("way", ["stop", "cancel"])
async def test_an_end_that_is_being_kept_is_kept(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, may_proceed, end = asyncio.Event(), asyncio.Event(), KeptResponses.end

    async def slow_end(self: KeptResponses, *ended: Any) -> KeptResponse | None:
        reached.set()
        await may_proceed.wait()
        return await end(self, *ended)

    monkeypatch.setattr(KeptResponses, "end", slow_end)
    async with gateways(tmp_path, said("Yes.")) as (runs, client, other):
        response = await begun(client)
        await asyncio.wait_for(reached.wait(), 30)
        doing = asyncio.create_task(
            runs.server.stop(grace_s=0) if way == "stop" else client.responses.cancel(response.id)
        )
        await asyncio.wait([doing], timeout=0.1)  # it gets as far as it can
        may_proceed.set()
        told = await doing
        found = await other.responses.retrieve(response.id)

    assert (found.status, found.output_text) == ("completed", "Yes.")
    assert told is None or told.status == "completed"


async def test_a_gateway_runs_so_many_and_one_tenant_a_part_of_those_and_of_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "MAX_RUNNING", 8)
    tenants = {name: TenantConfig(api_keys=frozenset({f"sk-{name}"})) for name in "abcdef"}
    script = waiting("Yes.")
    assert script.starts is not None
    async with serving(
        dispatcher=dispatcher(script),
        model=chat_model(),
        tenants=tenants,
        storage=StorageConfig(folder=str(tmp_path)),
    ) as gateway:

        async def codes_of(owner: str, num: int) -> list[int]:
            body = {"model": MODEL, "input": "Hello", "background": True}
            headers = {"authorization": f"Bearer sk-{owner}"}
            asked = (
                gateway.http.post("/v1/responses", json=body, headers=headers) for _ in range(num)
            )
            return sorted(response.status_code for response in await asyncio.gather(*asked))

        with monkeypatch.context() as broken:
            broken.setattr(KeptResponses, "put", AsyncMock(side_effect=StorageUnavailable("gone")))
            assert await codes_of("a", 2) == [503, 503]
        assert signs_in(tmp_path) == []
        assert await codes_of("a", 6) == [200] * 2 + [429] * 4
        others = [await codes_of(owner, 2) for owner in "bcdef"]
        assert others == [[200] * 2, [200] * 2, [200, 429], [200, 429], [429] * 2]
        script.starts.set()
        while await codes_of("a", 1) != [200]:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("changes", "why"), [({"stream": True}, "excludes stream"), ({"store": False}, "needs store")]
)
async def test_what_cannot_be_in_the_background_is_refused(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    async with gateways(tmp_path, said("Yes.")) as (runs, client, _):
        with pytest.raises(openai.BadRequestError, match=f"background {why}"):
            await client.responses.create(model=MODEL, input="x", background=True, **changes)

    assert runs.dispatcher.generations == []
