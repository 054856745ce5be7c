"""A real Prometheus that scrapes ports of this machine, and the dashboards' queries to ask it.

with prometheus(folder, [Targets(ports=[9400, 9420], labels={"namespace": "prod"})]) as url: ...
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from tests.free_ports import free_ports
from tests.tools import program

DASHBOARDS = Path(__file__).parents[3] / "helm" / "baton" / "dashboards"
LIMIT_S = 150.0
WINDOW = "20s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    ports: Sequence[int]
    labels: Mapping[str, str] = field(default_factory=dict)


def panels(**variables: str) -> Iterator[tuple[str, str]]:
    """Each query with its place. A variable that is not given is Grafana's `All`."""
    for file in sorted(DASHBOARDS.glob("*.json")):
        dashboard = json.loads(file.read_text())
        names = [one["name"] for one in dashboard["templating"]["list"]]
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                expr = target["expr"].replace("$__rate_interval", WINDOW)
                for name in names:
                    expr = expr.replace(f"${name}", variables.get(name, ".*"))
                yield f"{file.stem}: {panel['title']}", expr


@contextmanager
def prometheus(folder: Path, targets: Sequence[Targets]) -> Iterator[str]:
    scraped = [
        {"targets": [f"127.0.0.1:{port}" for port in one.ports], "labels": dict(one.labels)}
        for one in targets
    ]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [{"job_name": "baton", "static_configs": scraped}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    [port] = free_ports(1)
    process = subprocess.Popen(
        [
            program("prometheus"),
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=(folder / "log").open("w"),
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


async def until_nothing_is_left(
    http: httpx.AsyncClient, asked: Sequence[tuple[str, str]]
) -> list[str]:
    """Those that stay without an answer."""
    left, deadline = list(asked), time.monotonic() + LIMIT_S
    while left and time.monotonic() < deadline:
        await asyncio.sleep(1)
        try:
            left = [one for one in left if not await ask(http, one[1])]
        except httpx.TransportError:
            continue  # it is still coming up
    return [f"{where}: {query}" for where, query in left]


async def ask(http: httpx.AsyncClient, query: str) -> list[float]:
    answer = await http.get("/api/v1/query", params={"query": query})
    told = answer.json()
    assert answer.status_code in (200, 503), told
    return [float(one["value"][1]) for one in told.get("data", {}).get("result", [])]


async def times_told(http: httpx.AsyncClient, kinds: str) -> float:
    """How many processes at most tell of the same thing, of series called `baton_KIND_...`."""
    named = f'label_replace({{__name__=~"baton_({kinds})_.*"}}, "name", "$1", "__name__", "(.*)")'
    [times] = await ask(http, f"max(count without (instance) ({named}))")
    return times
