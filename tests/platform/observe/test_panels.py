"""Every panel of the dashboards, asked of a real Prometheus that scrapes a deployment's pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.in_process_fleet import Fleet, running_fleet
from tests.platform.observe.prometheus import (
    Targets,
    ask,
    panels,
    prometheus,
    times_told,
    until_nothing_is_left,
)
from tests.platform.observe.test_dashboards import told_by_a_planner, told_by_an_adapter
from tests.tools import needs

from baton.core.ids import new_request_id
from baton.core.metrics import Family, exposition
from baton.core.sampling import SamplingParams
from baton.gateway.requests.generations.generation import Generation
from baton.gateway.requests.metrics import GatewayMetrics
from baton.platform.observe.config import MetricsConfig
from baton.platform.observe.process_port import ProcessPages, ProcessPort
from baton.platform.replica.replica_page import ReplicaPage
from baton.replica_core.step_meter import StepCost

pytestmark = [pytest.mark.wide, needs("prometheus")]
MODEL = {"model": "demo"}
OTHERS = "planner|replica|worker"


async def test_no_panel_is_empty_and_nothing_is_scraped_twice(tmp_path: Path) -> None:
    async with deployment() as ports:
        with prometheus(tmp_path, [Targets(ports=ports)]) as url:
            async with httpx.AsyncClient(base_url=url, timeout=60) as http:
                asked = [one for one in panels() if not _is_of_tiers(one[1])]
                empty = await until_nothing_is_left(http, asked)
                times = {kind: await times_told(http, kind) for kind in ("gateway", OTHERS)}
                planned = await ask(http, "sum(baton_planner_planned_replicas)")
                gateways = await ask(http, "count(baton_gateway_open_requests)")

    assert not empty
    assert times == {"gateway": 2, OTHERS: 1}
    assert planned == [2.0], "one of each role: nodes for more have not come"
    assert gateways == [2.0]


async def test_each_release_is_shown_alone(tmp_path: Path) -> None:
    where = [
        {"namespace": "prod", "release": "a"},
        {"namespace": "prod", "release": "b"},
        {"namespace": "test", "release": "a"},
    ]
    async with AsyncExitStack() as stack:
        targets = [
            Targets(ports=await stack.enter_async_context(deployment()), labels=labels)
            for labels in where
        ]
        url = stack.enter_context(prometheus(tmp_path, targets))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        asked = [
            (f"{labels}: {place}", expr)
            for labels in where
            for place, expr in panels(**labels)
            if not _is_of_tiers(expr)
        ]
        empty = await until_nothing_is_left(http, asked)
        elsewhere = [
            place
            for labels in ({"namespace": "nowhere"}, {"release": "nobody"})
            for place, expr in panels(**labels)
            if await ask(http, expr)
        ]
        replicas = {
            (place, *labels.values()): sorted(await ask(http, expr))
            for labels in ({}, *where)
            for place, expr in panels(**labels)
            if place.endswith(": Replicas")
        }

    assert not empty
    assert not elsewhere
    assert replicas.pop(("baton-overview: Replicas",)) == [3.0, 3.0]
    assert list(replicas.values()) == 3 * [[1.0, 1.0]]


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
    asked = Generation(
        request_id=new_request_id(), prompt=(5,) * 6, sampling=SamplingParams(), tenant="acme"
    )
    while True:
        number += 1
        answer = await fleet.ask([number % 97, 6, 7, 8, 9, 10])
        for gateway in gateways:
            gateway.calls.add(1, "Chat", "OK")
            gateway.count_ended("ok", asked, answer.receipt, 12)
            for histogram in (gateway.first_token_s, gateway.token_s, gateway.total_s):
                histogram.observe(0.1)
            gateway.admission_s.observe(0.01)
        await asyncio.sleep(0.2)
