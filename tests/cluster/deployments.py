"""Applications of `baton deploy` on a Ray cluster that is there, and clients that ask them."""

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
from tests.cluster.node_script import NodeScript, node_script
from tests.cluster.test_live_cluster import CODE
from tests.free_ports import free_ports
from tests.live_server import when_all_answer

from baton.platform.observe.listeners import first_listening


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray cluster that somebody has started."""

    address: str

    def baton(self, *command: str) -> str:
        """What the command prints."""
        ran = subprocess.run(
            [sys.executable, "-m", "baton.platform.cli.main", *command],
            env={**os.environ, "RAY_ADDRESS": self.address, "COLUMNS": "200"},
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout


@dataclass(frozen=True, slots=True)
class Nodes(Cluster):
    """Those of `two_nodes.py` or `three_nodes.py`."""

    script: NodeScript

    def change(self, command: str) -> None:
        assert self.script.ask(command) == "done"


@contextmanager
def nodes_of(script: str, *options: str) -> Iterator[Nodes]:
    """`script`: a module beside this one, which first says the cluster's address."""
    with node_script(script, *options) as started:
        yield Nodes(started.answer(), started)


@contextmanager
def three_nodes(*options: str) -> Iterator[Nodes]:
    [port] = free_ports(1)
    with nodes_of("three_nodes", str(port), *options) as nodes:
        yield nodes


@dataclass(frozen=True, slots=True)
class Deployed:
    """An application, and its file."""

    cluster: Cluster
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
        return self.cluster.baton("deploy", "-f", str(self.file), *options)

    def scale(self, *pools: str) -> None:
        self.cluster.baton("scale", *pools, "--app-name", self.config["ray"]["app_name"])

    def undeploy(self) -> None:
        self.cluster.baton("undeploy", "--app-name", self.config["ray"]["app_name"])

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


def application(cluster: Cluster, folder: Path, name: str, **sections: Any) -> Deployed:
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
    return Deployed(cluster, folder / f"{name}.yaml", config, url, admin_port)


@asynccontextmanager
async def load(url: str, num_clients: int = 2) -> AsyncIterator[list[int]]:
    """Clients that ask one prompt after the other; the statuses of their answers.

    They pause in between: processes that start beside them need the cores, too.
    """
    statuses: list[int] = []
    is_over = False

    async def ask(client: int) -> None:
        number = 0
        async with httpx.AsyncClient(timeout=120) as http:
            while not is_over:
                number += 1
                start = (client * 701 + number * 97) % (len(CODE) - 600)
                body = {"prompt": CODE[start : start + 600], "max_tokens": 20, "ignore_eos": True}
                answer = await http.post(f"{url}/v1/completions", json=body, headers=bearer("old"))
                statuses.append(answer.status_code)
                await asyncio.sleep(0.25)

    asking = [asyncio.create_task(ask(client)) for client in range(num_clients)]
    try:
        yield statuses
    finally:
        is_over = True
        await asyncio.gather(*asking)
