"""`baton drain` on a live system under load: nobody notices, and no prompt is computed twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.cluster.test_live_cluster import CODE, prompts
from tests.live_server import Server, start_server, stop_server

pytestmark = [pytest.mark.cluster, pytest.mark.wide]

MAX_TOKENS = 800
"""Long enough to be moved, however fast the engine: who has a few tokens left ends where it is."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = start_server("--prefill", "1", "--decode", "2")
    yield server
    assert stop_server(server) == 0, "".join(server.output)


async def answer(client: httpx.AsyncClient, number: int, prompt: str) -> dict[str, Any]:
    body = {
        "prompt": prompt, "max_tokens": MAX_TOKENS, "ignore_eos": True, "receipt": True,
        "temperature": 1.0, "seed": number,
    }  # fmt: skip
    response = await client.post("/v1/completions", json=body)
    response.raise_for_status()
    said: dict[str, Any] = response.json()
    return said


def drain(server: Server, replica: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "baton.platform.cli.main", "drain", replica]
    return subprocess.run(
        [*command, "--url", server.admin_url], capture_output=True, text=True, timeout=120
    )


async def busiest(server: Server) -> dict[str, Any]:
    """The decode replica that runs most, as soon as one runs anything."""
    while True:
        rows: list[dict[str, Any]] = server.status()["pools"]["decode"]
        if (row := max(rows, key=lambda row: row["num_running"]))["num_running"]:
            return row
        await asyncio.sleep(0.05)


async def test_a_replica_is_emptied_under_load_and_nobody_notices(server: Server) -> None:
    wanted = prompts(8, chars=700)
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        undisturbed = [await answer(client, n, prompt) for n, prompt in enumerate(wanted)]

        # However fast the engine: the load goes on until the replica is empty.
        is_empty = asyncio.Event()

        async def keep_asking(number: int, prompt: str) -> list[dict[str, Any]]:
            answers = [await answer(client, number, prompt)]
            while not is_empty.is_set():
                answers.append(await answer(client, number, prompt))
            return answers

        asking = [asyncio.create_task(keep_asking(n, prompt)) for n, prompt in enumerate(wanted)]
        row = await busiest(server)
        drained = await asyncio.to_thread(drain, server, row["replica"])
        is_empty.set()
        answers = await asyncio.gather(*asking)

        assert drained.returncode == 0, drained.stderr
        assert "nothing is left there" in drained.stdout
        for said, expected in zip(answers, undisturbed, strict=True):
            texts = {one["choices"][0]["text"] for one in said}
            assert texts == {expected["choices"][0]["text"]}
        receipts = [one["baton"] for said in answers for one in said]
        again = [receipt for receipt in receipts if receipt["attempts"] > 1]
        assert all(receipt["decode_replica"] != row["replica"] for receipt in again)
        # Whoever had not begun there begins elsewhere; of the others at least some had.
        origin = f"moved from {row['replica']}"
        moved = [one for one in again if any(note.startswith(origin) for note in one["notes"])]
        assert moved
        for receipt in moved:
            # The prompt ran once; of the output, only what was on its way when it moved ran twice.
            assert receipt["computed_tokens"] <= receipt["prompt_tokens"] + MAX_TOKENS - 1

        left = next(r for r in server.status()["pools"]["decode"] if r["replica"] == row["replica"])
        assert (left["num_running"], left["is_ready"]) == (0, False)
        assert server.leaks()["violations"] == []
        refused = await asyncio.to_thread(drain, server, moved[0]["decode_replica"])
        assert refused.returncode == 2
        assert "is the last decode replica that takes requests" in refused.stderr
        assert (await answer(client, 99, CODE[:200]))["choices"][0]["text"]
