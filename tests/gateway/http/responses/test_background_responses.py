"""Responses that run without their client, on two gateways of one folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.gateway.chat_models import chat_model, dispatcher, openai_of, said
from tests.gateway.scripted import MODEL, Script, Serving, serving

from baton.core.errors import Unavailable
from baton.gateway.http.responses import background
from baton.gateway.storage.config import StorageConfig


@asynccontextmanager
async def gateways(folder: Path, script: Script) -> AsyncIterator[tuple[Serving, Any, Any]]:
    """One that runs the responses, and clients of it and of another."""
    config: dict[str, Any] = {"storage": StorageConfig(folder=str(folder))}
    async with (
        serving(dispatcher=dispatcher(script), model=chat_model(), **config) as runs,
        serving(dispatcher=dispatcher(said("Other.")), model=chat_model(), **config) as other,
    ):
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
    if is_killed:  # the sign of life expires, and nobody renews it
        monkeypatch.setattr(background, "SIGN_TTL_S", 0.0)
    async with gateways(tmp_path, waiting("Yes.")) as (runs, client, other):
        response = await begun(client)
        if not is_killed:
            await runs.server.stop(grace_s=0)
        found = await ended(other, response.id)

    assert (found.status, found.error.code) == ("failed", "interrupted")
    assert "send it again" in found.error.message


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
