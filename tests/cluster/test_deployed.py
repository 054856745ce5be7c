"""`baton deploy` on a cluster of three nodes: changed while it serves, beside another, updated."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cluster.test_live_cluster import CODE, wait_for
from tests.free_ports import free_ports
from tests.live_server import when_all_answer

from baton.platform.observe.listeners import first_listening

pytestmark = pytest.mark.cluster


@dataclass(frozen=True, slots=True)
class Nodes:
    """See `three_nodes.py`."""

    process: subprocess.Popen[str]
    address: str
    workers: tuple[str, ...]

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(command, file=self.process.stdin, flush=True)
        line = ""
        while not line.endswith("done\n"):  # Ray tells there, too, and may have begun the line
            line = self.process.stdout.readline()
            assert line, "the nodes are gone"

    def baton(self, *command: str) -> str:
        """What the command prints."""
        ran = subprocess.run(
            [sys.executable, "-m", "baton.platform.cli.main", *command],
            env={**os.environ, "RAY_ADDRESS": self.address, "COLUMNS": "200"},
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout


@contextmanager
def three_nodes(*options: str) -> Iterator[Nodes]:
    [port] = free_ports(1)
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("three_nodes.py"), str(port), *options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    address, *workers = process.stdout.readline().split()
    yield Nodes(process, address, tuple(workers))
    process.stdin.close()
    assert process.wait(180) == 0


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with three_nodes() as nodes:
        yield nodes


@dataclass(frozen=True, slots=True)
class Deployed:
    """An application, and its file."""

    nodes: Nodes
    file: Path
    config: dict[str, Any]
    url: str
    admin_port: int

    def deploy(self, *options: str, **sections: Any) -> str:
        """As the file says, but for other sections."""
        for name, section in sections.items():
            known = self.config.get(name)
            self.config[name] = {**known, **section} if isinstance(known, dict) else section
        self.file.write_text(json.dumps(self.config))  # which is YAML
        return self.nodes.baton("deploy", "-f", str(self.file), *options)

    def epochs(self, key: str = "old") -> dict[str, set[str]]:
        """Of the replicas that take requests: each process draws its own."""
        port = first_listening("127.0.0.1", self.admin_port)
        url = f"http://127.0.0.1:{port}/debug/status"

        def ask() -> dict[str, Any]:
            answer = httpx.get(url, headers=bearer(key), timeout=60)
            answer.raise_for_status()
            status: dict[str, Any] = answer.json()
            return status

        return {
            pool: {row["epoch"] for row in rows if row["is_ready"] and row["is_reachable"]}
            for pool, rows in when_all_answer(ask)["pools"].items()
        }


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def application(nodes: Nodes, folder: Path, name: str, **sections: Any) -> Deployed:
    port, grpc_port, admin_port = free_ports(3)
    keys = folder / f"{name}-keys"
    keys.write_text("old\n")
    config = {
        "dtype": "float32",
        "ray": {"app_name": name},
        "gateway": {
            "port": port,
            "grpc_port": grpc_port,
            "admin_port": admin_port,
            "operator_keys": [f"file:{keys}"],
        },
        "health": {"drain_s": 20},
        **sections,
    }
    url = f"http://127.0.0.1:{port}"
    return Deployed(nodes, folder / f"{name}.yaml", config, url, admin_port)


@asynccontextmanager
async def load(url: str, num_clients: int = 3) -> AsyncIterator[list[int]]:
    """Clients that ask one prompt after the other; the statuses of their answers."""
    statuses: list[int] = []
    is_over = False

    async def ask(client: int) -> None:
        number = 0
        async with httpx.AsyncClient(timeout=120) as http:
            while not is_over:
                number += 1
                start = (client * 701 + number * 97) % (len(CODE) - 900)
                body = {"prompt": CODE[start : start + 900], "max_tokens": 20, "ignore_eos": True}
                answer = await http.post(f"{url}/v1/completions", json=body, headers=bearer("old"))
                statuses.append(answer.status_code)

    asking = [asyncio.create_task(ask(client)) for client in range(num_clients)]
    try:
        yield statuses
    finally:
        is_over = True
        await asyncio.gather(*asking)


async def test_a_deployment_changes_under_load_and_nobody_is_started_anew(
    nodes: Nodes, tmp_path: Path
) -> None:
    app = application(nodes, tmp_path, "hot")
    await asyncio.to_thread(app.deploy)
    before = await asyncio.to_thread(app.epochs)
    assert {pool: len(epochs) for pool, epochs in before.items()} == {"prefill": 1, "decode": 1}

    async with load(app.url, num_clients=2) as statuses:
        await asyncio.to_thread(nodes.baton, "scale", "prefill=2", "--app-name", "hot")
        more = await asyncio.to_thread(app.epochs)
        limits = {"max_choices": 2, "max_waiting": 77}
        await asyncio.to_thread(app.deploy, prefill={"replicas": 1}, gateway=limits)
        await asyncio.to_thread(wait_for, lambda: len(app.epochs()["prefill"]) == 1)
        after = await asyncio.to_thread(app.epochs)

    assert more["decode"] == after["decode"] == before["decode"]
    assert before["prefill"] < more["prefill"] and len(more["prefill"]) == 2
    assert after["prefill"] < more["prefill"]
    assert set(statuses) == {200}
    body = {"prompt": "a", "n": 3, "max_tokens": 1}
    refused = httpx.post(f"{app.url}/v1/completions", json=body, headers=bearer("old"), timeout=60)
    assert refused.status_code == 400  # by the new limit
    (tmp_path / "hot-keys").write_text("new\n")
    await asyncio.to_thread(wait_for, lambda: app.epochs("new") == after)
    nodes.baton("undeploy", "--app-name", "hot")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{app.url}/health", timeout=60)


@pytest.mark.wide
@pytest.mark.timeout(600)
async def test_two_models_side_by_side_an_update_and_the_loss_of_a_node(
    nodes: Nodes, tmp_path: Path
) -> None:
    none = {"replicas": 0}
    first = application(nodes, tmp_path, "first", prefill=none, decode={"replicas": 2})
    second = application(nodes, tmp_path, "second", model="draft", prefill=none)
    await asyncio.to_thread(first.deploy)
    await asyncio.to_thread(second.deploy)
    old = await asyncio.to_thread(first.epochs)
    others = await asyncio.to_thread(second.epochs)

    async with load(first.url) as statuses, load(second.url, num_clients=1) as beside:
        told = await asyncio.to_thread(
            first.deploy, "--dry-run", decode={"replicas": 2, "cache": {"num_blocks": 600}}
        )
        assert "restart" in told and "decode.cache.num_blocks" in told
        assert await asyncio.to_thread(first.epochs) == old
        await asyncio.to_thread(first.deploy)
        new = await asyncio.to_thread(first.epochs)

        assert not new["decode"] & old["decode"] and len(new["decode"]) == 2
        assert await asyncio.to_thread(second.epochs) == others
    assert set(statuses) == set(beside) == {200}

    shown = await asyncio.to_thread(nodes.baton, "top", "--app-name", "first", "--json")
    [decodes] = [
        [r for r in a["replicas"] if r["deployment"] == "Decode"] for a in json.loads(shown)
    ]
    await asyncio.to_thread(nodes.tell, f"down {decodes[0]['node_id']}")
    await asyncio.to_thread(wait_for, lambda: len(first.epochs()["decode"] - lost(decodes)) == 2)
    async with load(first.url) as statuses:
        await asyncio.sleep(1)
    assert set(statuses) == {200}
    nodes.baton("undeploy", "--app-name", "first")
    assert await asyncio.to_thread(second.epochs)


@pytest.mark.wide
async def test_applications_that_come_and_go_at_once_do_not_end_each_other(
    nodes: Nodes, tmp_path: Path
) -> None:
    none = {"replicas": 0}
    apps = {
        name: application(nodes, tmp_path, name, prefill=none) for name in ("one", "two", "three")
    }

    async def shown() -> set[str]:
        said = await asyncio.to_thread(nodes.baton, "top", "--json")
        return {app["application"] for app in json.loads(said)}

    first = asyncio.to_thread(apps["one"].deploy)
    await asyncio.gather(first, asyncio.to_thread(apps["two"].deploy))
    assert await shown() >= {"one", "two"}

    leaves = asyncio.to_thread(nodes.baton, "undeploy", "--app-name", "one")
    await asyncio.gather(leaves, asyncio.to_thread(apps["three"].deploy))
    assert await shown() >= {"two", "three"}
    for name in ("two", "three"):
        await asyncio.to_thread(nodes.baton, "undeploy", "--app-name", name)


def lost(rows: list[dict[str, Any]]) -> set[str]:
    """Epochs of the replicas that were on the node of the first."""
    return {row["says"]["epoch"] for row in rows if row["node_id"] == rows[0]["node_id"]}
