"""`baton flip` on a live system under load: nobody notices, and nothing is computed twice."""

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
from tests.cluster.test_live_cluster import prompts
from tests.live_server import Server, start_server, stop_server

pytestmark = [pytest.mark.cluster, pytest.mark.wide]

MAX_TOKENS = 300


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = start_server("--prefill", "2", "--decode", "2")
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


def flip(server: Server, replica: str, to: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "baton.platform.cli.main", "flip", replica, "--to", to]
    return subprocess.run(
        [*command, "--url", server.admin_url], capture_output=True, text=True, timeout=180
    )


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


async def test_replicas_change_roles_under_load_and_their_successors_change_back(
    server: Server,
) -> None:
    wanted = prompts(6, chars=500)
    before = roles(server)
    async with httpx.AsyncClient(base_url=server.url, timeout=180) as client:
        undisturbed = [await answer(client, n, prompt) for n, prompt in enumerate(wanted)]
        is_over = asyncio.Event()

        async def keep_asking(number: int, prompt: str) -> list[dict[str, Any]]:
            answers = [await answer(client, number, prompt)]
            while not is_over.is_set():
                answers.append(await answer(client, number, prompt))
            return answers

        asking = [asyncio.create_task(keep_asking(n, prompt)) for n, prompt in enumerate(wanted)]
        to_decode = await asyncio.to_thread(flip, server, "prefill", "decode")
        during = roles(server)
        to_prefill = await asyncio.to_thread(flip, server, before["decode"][0], "prefill")
        is_over.set()
        answers = await asyncio.gather(*asking)

    for flipped_one in (to_decode, to_prefill):
        assert flipped_one.returncode == 0, flipped_one.stderr
    for said, expected in zip(answers, undisturbed, strict=True):
        assert {one["choices"][0]["text"] for one in said} == {expected["choices"][0]["text"]}
    receipts = [one["baton"] for said in answers for one in said]
    assert max(receipt["computed_tokens"] - receipt["prompt_tokens"] for receipt in receipts) < (
        MAX_TOKENS
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
