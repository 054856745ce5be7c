"""`baton serve --speculate` through kill -9 of the replica that drafts, in mid-answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from tests.cluster.test_live_cluster import prompts, wait_for
from tests.live_server import Server, start_server, stop_server

pytestmark = [pytest.mark.cluster, pytest.mark.wide]

MAX_TOKENS = 1500
"""So many that a kill that comes late on a busy machine still comes in mid-answer."""
KILLED_AT = 5
"""Pieces of the first answer."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It always drafts: on a busy machine what drafts win is noise, and they might rest."""
    config = tmp_path_factory.mktemp("config") / "baton.yaml"
    config.write_text("decode: {speculation: {adaptive: false}}\n")
    server = start_server("--config", str(config), "--speculate", "suffix")
    yield server
    assert stop_server(server) == 0, "".join(server.output)


Said = tuple[str, dict[str, Any]]


async def answer(
    client: openai.AsyncOpenAI, number: int, prompt: str, is_far: asyncio.Event | None = None
) -> Said:
    """Its text and its receipt; greedy, which repeats itself, or seeded."""
    text, num_pieces, receipt = "", 0, None
    stream = await client.completions.create(
        model="demo", prompt=prompt, max_tokens=MAX_TOKENS, stream=True,
        temperature=0.7 * (number % 2), seed=number,
        extra_body={"ignore_eos": True, "receipt": True},
    )  # fmt: skip
    async for chunk in stream:
        if chunk.choices:
            text, num_pieces = text + chunk.choices[0].text, num_pieces + 1
        if is_far is not None and num_pieces >= KILLED_AT:
            is_far.set()
        receipt = (chunk.model_extra or {}).get("baton") or receipt
    assert receipt is not None
    return text, receipt


async def test_kill_9_in_mid_draft_costs_no_client_a_token(server: Server) -> None:
    wanted = prompts(4, chars=700)
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300
    ) as client:
        undisturbed = [await answer(client, n, prompt) for n, prompt in enumerate(wanted)]
        victim = server.replica_process("Decode")
        is_far = asyncio.Event()
        asking = [
            asyncio.create_task(answer(client, n, prompt, is_far))
            for n, prompt in enumerate(wanted)
        ]
        await is_far.wait()
        victim.kill()
        answers = await asyncio.gather(*asking)

    assert [text for text, _ in answers] == [text for text, _ in undisturbed]
    assert all(receipt["accepted_tokens"] > 0 for _, receipt in undisturbed[::2])
    assert max(receipt["attempts"] for _, receipt in answers) > 1
    await asyncio.to_thread(wait_for, lambda: server.epoch("decode"))
    rows = server.status()["pools"]["decode"]
    [metrics] = [row["metrics"] for row in rows if row["is_reachable"]]  # not of the one killed
    assert metrics["drafted_tokens_total"] >= metrics["accepted_tokens_total"] > 0
    assert httpx.get(f"{server.admin_url}/debug/leaks", timeout=60).json()["violations"] == []
