"""One replica over two nodes, of which one is killed and comes back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cluster.moe_folder import greedy_on_one_rank, make_moe_folder
from tests.cluster.test_data_ranks import NUM_TOKENS, PROMPTS, answers, replicas
from tests.cluster.test_live_cluster import wait_for
from tests.live_server import Server, start_server, stop_server

pytestmark = [pytest.mark.cluster, pytest.mark.wide]


@dataclass(frozen=True, slots=True)
class Nodes:
    """See `two_nodes.py`."""

    process: subprocess.Popen[str]

    def do(self, word: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(word, file=self.process.stdin, flush=True)
        line = ""
        while not line.endswith("done\n"):  # Ray tells there, too, and may have begun the line
            line = self.process.stdout.readline()
            assert line, "the nodes are gone"


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Nodes, str]]:
    """And its address; one node so far."""
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("two_nodes.py")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    yield Nodes(process), process.stdout.readline().strip()
    process.stdin.close()
    assert process.wait(180) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_moe_folder(tmp_path_factory.mktemp("mixtral"))


@pytest.fixture(scope="module")
def server(
    cluster: tuple[Nodes, str], folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    nodes, address = cluster
    config = tmp_path_factory.mktemp("config") / "baton.yaml"
    config.write_text(
        f"ray: {{address: '{address}'}}\n"
        "prefill: {replicas: 0}\n"
        "decode: {parallel: {data: 2, expert: 2}}\n"
        "gateway: {no_replica_grace_s: 200}\n"
    )
    coming = threading.Thread(target=nodes.do, args=("up",))  # gateway and registry come first
    coming.start()
    server = start_server(str(folder), "-f", str(config))
    coming.join()
    yield server
    assert stop_server(server) == 0, "".join(server.output)


async def test_a_replica_over_two_nodes_survives_the_loss_of_one(
    cluster: tuple[Nodes, str], server: Server, folder: Path
) -> None:
    nodes, _ = cluster
    expected = await asyncio.to_thread(greedy_on_one_rank, folder, PROMPTS, NUM_TOKENS)
    assert await answers(server) == expected
    old = set(replicas(server))
    assert len(old) == 2

    is_lost = asyncio.Event()

    async def keep_asking() -> list[list[list[int]]]:
        """However fast the engines: some are under way when the node is killed."""
        found = [await answers(server)]
        while not is_lost.is_set():
            found.append(await answers(server))
        return found

    answering = asyncio.create_task(keep_asking())
    await asyncio.sleep(0.3)
    await asyncio.to_thread(nodes.do, "down")
    await asyncio.to_thread(wait_for, lambda: not replicas(server))
    assert not answering.done()
    is_lost.set()

    await asyncio.to_thread(nodes.do, "up")
    assert all(found == expected for found in await answering)
    assert len(set(replicas(server)) - old) == 2
    assert server.leaks()["violations"] == []
