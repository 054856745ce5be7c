"""`baton drain`, `undrain` and `flip` under load: nobody notices, and nothing is computed twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import psutil
import pytest
from tests.cluster.test_live_cluster import CODE, prompts, wait_for
from tests.live_server import Server, start_server, stop_server

pytestmark = [pytest.mark.cluster, pytest.mark.wide]

MOVED = 800
"""Tokens, so many that requests are moved, however fast the engine: who has a few left ends where
it is."""
FLIPPED = 300


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = start_server("--prefill", "2", "--decode", "2")
    yield server
    assert stop_server(server) == 0, "".join(server.output)


async def answer(
    client: httpx.AsyncClient, number: int, prompt: str, max_tokens: int
) -> dict[str, Any]:
    body = {
        "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "receipt": True,
        "temperature": 1.0, "seed": number,
    }  # fmt: skip
    response = await client.post("/v1/completions", json=body)
    response.raise_for_status()
    said: dict[str, Any] = response.json()
    return said


def baton(server: Server, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "baton.platform.cli.main", *command, "--url", server.admin_url],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip


async def busiest(server: Server, at_least: int) -> dict[str, Any]:
    """The decode replica that runs most, as soon as one runs so many."""
    while True:
        rows: list[dict[str, Any]] = server.status()["pools"]["decode"]
        if (row := max(rows, key=lambda row: row["num_running"]))["num_running"] >= at_least:
            return row
        await asyncio.sleep(0.05)


def roles(server: Server) -> dict[str, list[str]]:
    return {
        role: sorted(row["replica"] for row in rows if row["is_ready"])
        for role, rows in server.status()["pools"].items()
    }


def process_of(server: Server, replica: str) -> psutil.Process:
    """By the port it listens on."""
    rows = [row for rows in server.status()["pools"].values() for row in rows]
    [address] = [row["address"] for row in rows if row["replica"] == replica]
    port = int(address.rpartition(":")[2])
    [found] = [process for process in server.processes() if listens(process, port)]
    return found


def listens(process: psutil.Process, port: int) -> bool:
    with suppress(psutil.NoSuchProcess):  # it ends while it is looked at
        connections = process.net_connections()
        return any(it.laddr.port == port and it.status == "LISTEN" for it in connections)
    return False


async def test_a_replica_is_emptied_under_load_and_nobody_notices(server: Server) -> None:
    wanted = prompts(8, chars=700)
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        undisturbed = [await answer(client, n, prompt, MOVED) for n, prompt in enumerate(wanted)]

        # However fast the engine: the load goes on until the replica is empty.
        is_empty = asyncio.Event()

        async def keep_asking(number: int, prompt: str) -> list[dict[str, Any]]:
            await asyncio.sleep(number / 4)  # or all would end, and begin anew, at once
            answers = [await answer(client, number, prompt, MOVED)]
            while not is_empty.is_set():
                answers.append(await answer(client, number, prompt, MOVED))
            return answers

        asking = [asyncio.create_task(keep_asking(n, prompt)) for n, prompt in enumerate(wanted)]
        row = await busiest(server, len(wanted) // 2)
        # At once: before a command has started, they may be over, and the next be elsewhere.
        url = f"{server.admin_url}/debug/drain"
        ordered = await client.post(url, json={"replica": row["replica"]})
        assert ordered.json()["num_open"] > 0
        drained = await asyncio.to_thread(baton, server, "drain", row["replica"])
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
        assert moved, [one["notes"] for one in again]
        for receipt in moved:
            # The prompt ran once; of the output, only what was on its way when it moved ran twice.
            assert receipt["computed_tokens"] <= receipt["prompt_tokens"] + MOVED - 1

        left = next(r for r in server.status()["pools"]["decode"] if r["replica"] == row["replica"])
        assert (left["num_running"], left["is_ready"]) == (0, False)
        assert server.leaks()["violations"] == []
        refused = await asyncio.to_thread(baton, server, "drain", moved[0]["decode_replica"])
        assert refused.returncode == 2
        assert "is the last decode replica that takes requests" in refused.stderr
        assert (await answer(client, 99, CODE[:200], 9))["choices"][0]["text"]

        back = await asyncio.to_thread(baton, server, "undrain", row["replica"])
        assert back.returncode == 0, back.stderr
        await asyncio.to_thread(wait_for, lambda: row["replica"] in roles(server)["decode"])


async def test_replicas_change_roles_under_load_and_their_successors_change_back(
    server: Server,
) -> None:
    wanted = prompts(6, chars=500)
    before = roles(server)
    async with httpx.AsyncClient(base_url=server.url, timeout=180) as client:
        undisturbed = [await answer(client, n, prompt, FLIPPED) for n, prompt in enumerate(wanted)]
        is_over = asyncio.Event()

        async def keep_asking(number: int, prompt: str) -> list[dict[str, Any]]:
            answers = [await answer(client, number, prompt, FLIPPED)]
            while not is_over.is_set():
                answers.append(await answer(client, number, prompt, FLIPPED))
            return answers

        asking = [asyncio.create_task(keep_asking(n, prompt)) for n, prompt in enumerate(wanted)]
        to_decode = await asyncio.to_thread(baton, server, "flip", "prefill", "--to", "decode")
        during = roles(server)
        to_prefill = await asyncio.to_thread(
            baton, server, "flip", before["decode"][0], "--to", "prefill"
        )
        is_over.set()
        answers = await asyncio.gather(*asking)

    for flipped_one in (to_decode, to_prefill):
        assert flipped_one.returncode == 0, flipped_one.stderr
    for said, expected in zip(answers, undisturbed, strict=True):
        assert {one["choices"][0]["text"] for one in said} == {expected["choices"][0]["text"]}
    receipts = [one["baton"] for said in answers for one in said]
    assert max(receipt["computed_tokens"] - receipt["prompt_tokens"] for receipt in receipts) < (
        FLIPPED
    )
    assert (len(during["prefill"]), len(during["decode"])) == (1, 3)
    after = roles(server)
    [flipped] = set(before["prefill"]) & set(after["decode"])
    assert before["decode"][0] in after["prefill"]
    assert server.leaks()["violations"] == []
    ready = httpx.get(f"{server.url}/ready", timeout=60).json()
    assert ready == {"status": "ready"}

    process_of(server, flipped).kill()
    async with asyncio.timeout(120):
        while flipped in (now := roles(server))["decode"] or len(now["prefill"]) < 3:
            await asyncio.sleep(0.5)
    assert len(now["decode"]) == 1  # Serve's new one has the role of its pool
