"""One replica over two nodes, of which one is killed and comes back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.deployments import Nodes, nodes_of
from tests.cluster.moe_folder import greedy_on_one_rank, make_moe_folder
from tests.cluster.test_data_ranks import NUM_TOKENS, PROMPTS, answers, replicas
from tests.cluster.test_live_cluster import wait_for
from tests.live_server import Server, start_server, stop_server

pytestmark = [pytest.mark.cluster, pytest.mark.wide]


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Nodes]:
    """One so far."""
    with nodes_of("two_nodes") as nodes:
        yield nodes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_moe_folder(tmp_path_factory.mktemp("mixtral"))


@pytest.fixture(scope="module")
def server(
    two_nodes: Nodes, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    config = tmp_path_factory.mktemp("config") / "baton.yaml"
    config.write_text(
        f"ray: {{address: '{two_nodes.address}'}}\n"
        "prefill: {replicas: 0}\n"
        "decode: {parallel: {data: 2, expert: 2}}\n"
        "gateway: {no_replica_grace_s: 500}\n"
    )
    coming = threading.Thread(
        target=two_nodes.change, args=("up",)
    )  # gateway and registry come first
    coming.start()
    server = start_server(str(folder), "-f", str(config))
    coming.join()
    yield server
    assert stop_server(server) == 0, "".join(server.output)


async def test_a_replica_over_two_nodes_survives_the_loss_of_one(
    two_nodes: Nodes, server: Server, folder: Path
) -> None:
    expected = await asyncio.to_thread(greedy_on_one_rank, folder, PROMPTS, NUM_TOKENS)
    assert await answers(server) == expected
    await asyncio.to_thread(wait_for, lambda: len(replicas(server)) == 2)
    old = set(replicas(server))

    is_lost = asyncio.Event()

    async def keep_asking() -> list[list[list[int]]]:
        """However fast the engines: some are under way when the node is killed."""
        found = [await answers(server)]
        while not is_lost.is_set():
            found.append(await answers(server))
        return found

    answering = asyncio.create_task(keep_asking())
    await asyncio.sleep(0.3)
    await asyncio.to_thread(two_nodes.change, "down")
    await asyncio.to_thread(wait_for, lambda: not replicas(server))
    assert not answering.done()
    is_lost.set()

    await asyncio.to_thread(two_nodes.change, "up")
    assert all(found == expected for found in await answering)
    # The first of the two that is known may have answered all of them.
    await asyncio.to_thread(wait_for, lambda: len(set(replicas(server)) - old) == 2)
    assert server.leaks()["violations"] == []
