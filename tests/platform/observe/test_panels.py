"""Every panel of the dashboards, asked of a real Prometheus that scrapes a deployment's pages."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.free_ports import free_ports
from tests.in_process_fleet import Fleet, running_fleet
from tests.platform.observe.test_dashboards import CHART, told_by_a_planner, told_by_an_adapter

from baton.core.metrics import Family, exposition
from baton.gateway.requests.metrics import GatewayMetrics
from baton.platform.observe.config import MetricsConfig
from baton.platform.observe.process_port import ProcessPages, ProcessPort
from baton.platform.replica.replica_page import ReplicaPage
from baton.replica_core.step_meter import StepCost

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.wide,
    pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus (Debian: prometheus)"),
]
LIMIT_S = 90.0
WINDOW = "20s"
MODEL = {"model": "demo"}
ONCE = (
    'max(count without (instance) (label_replace({__name__=~"baton_(replica|planner|worker)_.*"}, '
    '"name", "$1", "__name__", "(.*)")))'
)
"""How many processes tell of the same thing."""


def panels() -> Iterator[tuple[str, str]]:
    for file in sorted((CHART / "dashboards").glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                expr = target["expr"].replace("$__rate_interval", WINDOW)
                expr = expr.replace("$model", ".*").replace("$role", ".*")
                yield f"{file.stem}: {panel['title']}", expr


async def test_no_panel_is_empty_and_nothing_is_scraped_twice(tmp_path: Path) -> None:
    async with deployment() as ports:
        with prometheus(tmp_path, ports) as url:
            async with httpx.AsyncClient(base_url=url, timeout=60) as http:
                asked = [one for one in panels() if not _is_of_tiers(one[1])]
                empty = await until_nothing_is_left(http, asked)
                [times] = await ask(http, ONCE)
                planned = await ask(http, "sum(baton_planner_planned_replicas)")
                gateways = await ask(http, "count(baton_gateway_open_requests)")

    assert not empty
    assert times == 1
    assert planned == [2.0], "one of each role: nodes for more have not come"
    assert gateways == [2.0]


def _is_of_tiers(expr: str) -> bool:
    return "baton_replica_tier_" in expr  # where none is configured there are no series


@asynccontextmanager
async def deployment() -> AsyncIterator[list[int]]:
    """A replica of each role, two gateways of which one has the planner's numbers, an adapter."""
    async with running_fleet() as fleet, AsyncExitStack() as stack:
        rates = MetricsConfig(peak_tflop_s=1, peak_gb_s=1)
        planner, adapter = told_by_a_planner(nodes="kuberay"), tuple(told_by_an_adapter())
        gateways = [GatewayMetrics(), GatewayMetrics()]
        pages: list[Callable[[], str]] = [lambda: exposition(adapter)]
        for replica in fleet.replicas.values():
            replica.worker.core.meter.cost = StepCost(token_flops=1.0, weight_bytes=1.0)
            pages.append(ReplicaPage(replica, rates).text)
        for gateway, told in zip(gateways, (planner, ()), strict=True):
            pages.append(partial(gateway_page, fleet, gateway, told))
        ports = []
        for page in pages:
            port = ProcessPort(ProcessPages(metrics=page))
            await port.start("127.0.0.1", 0)
            stack.push_async_callback(port.stop)
            ports.append(port.port)
        asking = asyncio.create_task(keep_asking(fleet, gateways))
        try:
            yield ports
        finally:
            asking.cancel()


def gateway_page(fleet: Fleet, gateway: GatewayMetrics, told: Sequence[Family]) -> str:
    return exposition((*gateway.families(), *fleet.dispatcher.metrics(), *told), MODEL)


async def keep_asking(fleet: Fleet, gateways: Sequence[GatewayMetrics]) -> None:
    number = 0
    while True:
        number += 1
        answer = await fleet.ask([number % 97, 6, 7, 8, 9, 10])
        for gateway in gateways:
            gateway.calls.add(1, "Chat", "OK")
            gateway.count_ended("ok", "acme", answer.receipt, 6, 12)
            for histogram in (gateway.first_token_s, gateway.token_s, gateway.total_s):
                histogram.observe(0.1)
            gateway.admission_s.observe(0.01)
        await asyncio.sleep(0.2)


@contextmanager
def prometheus(folder: Path, ports: Sequence[int]) -> Iterator[str]:
    targets = [f"127.0.0.1:{port}" for port in ports]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [{"job_name": "baton", "static_configs": [{"targets": targets}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    [port] = free_ports(1)
    assert PROMETHEUS is not None
    process = subprocess.Popen(
        [
            PROMETHEUS,
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
