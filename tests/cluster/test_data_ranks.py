"""Engines that share experts, as `baton serve` starts them: replicas like others to clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.cluster.moe_folder import greedy_on_one_rank, make_moe_folder
from tests.cluster.test_live_cluster import wait_for
from tests.live_server import Server, start_server, stop_wholly

pytestmark = [pytest.mark.cluster, pytest.mark.wide]

PROMPTS = [f"the number {number} is not " * (1 + 5 * number) for number in range(6)]
NUM_TOKENS = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_moe_folder(tmp_path_factory.mktemp("mixtral"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    return greedy_on_one_rank(folder, PROMPTS, NUM_TOKENS)


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = tmp_path_factory.mktemp("config") / "baton.yaml"
    config.write_text("prefill: {replicas: 0}\ndecode: {parallel: {data: 2, expert: 2}}\n")
    server = start_server(str(folder), "-f", str(config))
    yield server
    stop_wholly(server)


def replicas(server: Server) -> dict[str, dict[str, Any]]:
    """By name, those that can be reached."""
    found = server.status()["pools"]["decode"]
    return {each["replica"]: each for each in found if each["is_reachable"]}


def second_lead(server: Server) -> psutil.Process:
    [found] = server.processes_called("ray::RankActor")
    return found


async def answers(server: Server) -> list[list[int]]:
    async with httpx.AsyncClient(base_url=server.url, timeout=240) as client:

        async def answer(prompt: str) -> list[int]:
            body = {
                "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True,
            }  # fmt: skip
            told = (await client.post("/v1/completions", json=body)).json()
            tokens: list[int] = told["choices"][0]["token_ids"]
            return tokens

        return await asyncio.gather(*map(answer, PROMPTS))


async def test_both_engines_serve_and_say_what_one_rank_says(
    server: Server, expected: list[list[int]]
) -> None:
    await asyncio.to_thread(wait_for, lambda: len(replicas(server)) == 2)
    first, second = sorted(replicas(server))
    assert second == f"{first}.1"
    num_finished = dict.fromkeys((first, second), 0.0)

    for _ in range(10):  # whose a prompt is, the router chooses
        assert await answers(server) == expected
        for name, row in replicas(server).items():
            num_finished[name] = row["metrics"]["requests_finished_total"]
        if all(num_finished.values()):
            break

    assert all(num_finished.values()), num_finished
    assert server.leaks()["violations"] == []


async def test_a_lead_that_is_killed_takes_the_other_along_and_costs_no_client_a_token(
    server: Server, expected: list[list[int]]
) -> None:
    old, lead = replicas(server), second_lead(server)
    first = server.replica_process("Decode")

    answering = asyncio.create_task(answers(server))
    await asyncio.sleep(0.3)
    lead.kill()

    assert await answering == expected
    await asyncio.to_thread(wait_for, lambda: len(set(replicas(server)) - set(old)) == 2)
    await asyncio.to_thread(wait_for, lambda: not first.is_running())
    assert second_lead(server).pid != lead.pid
    assert server.leaks()["violations"] == []
