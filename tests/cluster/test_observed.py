"""What a live deployment tells of itself: a trace that joins its processes, and every panel.

One deployment for both: three gateways, two prefill replicas, one decode replica, each a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Event

import httpx
import msgspec
import psutil
import pytest
from tests.cluster.test_live_cluster import CODE, wait_for
from tests.free_ports import free_ports
from tests.live_server import Server, start_server, stop_server
from tests.platform.observe.prometheus import (
    Targets,
    ask,
    panels,
    prometheus,
    times_told,
    until_nothing_is_left,
)
from tests.tools import needs
from tests.trace_collector import CONTEXT, Collector, collecting

pytestmark = [pytest.mark.cluster, pytest.mark.wide]

NUM_GATEWAYS = 3
ON_KUBERNETES = (
    "baton_worker_group", "baton_planner_asked_replicas", "baton_planner_places_replicas",
)  # fmt: skip
"""Series of worker groups that follow, and of the nodes asked for."""
STATUS_OK = 200
ROOTS = ("text_completion demo", "decode", "prefill")
"""The span that each process ends last."""


@dataclass(frozen=True, slots=True)
class Live:
    server: Server
    collector: Collector
    url: str


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    port, grpc_port = free_ports(2)
    with collecting() as (collector, endpoint):
        pool = {"cache": {"num_blocks": 400}}
        steps = {"scheduler": {"prefill_chunk": 2}}  # hundreds a prompt: time to be killed in
        config = tmp_path_factory.mktemp("observed") / "baton.yaml"
        config.write_bytes(
            msgspec.yaml.encode(
                {
                    "gateway": {"replicas": NUM_GATEWAYS},
                    "prefill": {"replicas": 2, **pool, **steps},
                    "decode": pool,
                    "tiers": {"host": {"gib": 0.1}},
                    "metrics": {"peak_tflop_s": 1.0, "peak_gb_s": 10.0},
                    "planner": {"enabled": True, "mode": "observe", "period_s": 1.0},
                    "tracing": {"otlp_endpoint": endpoint, "export_every_s": 0.5},
                }
            )
        )
        asked = ("--port", str(port), "--grpc-port", str(grpc_port))  # all gateways listen there
        server = start_server("-f", str(config), *asked)
        yield Live(server, collector, f"http://127.0.0.1:{port}")
        status = stop_server(server)
    assert status == 0, "".join(server.output)


def pages(server: Server, deployment: str) -> Iterator[tuple[psutil.Process, int]]:
    """Each process of it that has come up, with the port of its metrics."""
    for process in server.processes_called(f"ray::ServeReplica:baton:{deployment}"):
        with suppress(psutil.Error):
            for one in process.net_connections("tcp"):
                is_own = one.status == psutil.CONN_LISTEN and 9400 <= one.laddr.port < 9456
                if is_own and page(one.laddr.port):
                    yield process, one.laddr.port


def page(port: int) -> str:
    """Empty where there is none."""
    with suppress(httpx.HTTPError):
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10)
        return answer.text if answer.status_code == STATUS_OK else ""
    return ""


def complete(live: Live, prompt: str, **headers: str) -> httpx.Response:
    """By a connection of its own, which the kernel gives to any of the gateways."""
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "receipt": True}
    return httpx.post(f"{live.url}/v1/completions", json=body, headers=headers, timeout=300)


def told(port: int, series: str) -> list[float]:
    """The values of all series that begin so."""
    lines = page(port).splitlines()
    return [float(line.split()[-1]) for line in lines if line.startswith(series)]


def all_know_both(server: Server) -> bool:
    """Whether every gateway, any of which may be asked, knows both prefill replicas."""
    of_prefill = 'baton_gateway_kv_index_synced{model="demo",replica="prefill-'
    known = [told(port, of_prefill) for _, port in pages(server, "Gateway")]
    return known == [[1.0, 1.0]] * NUM_GATEWAYS


def who_computes(
    prefill: list[tuple[psutil.Process, int]], asked: Future[httpx.Response]
) -> psutil.Process:
    """The one that has tokens to compute yet."""
    while not asked.done():
        for process, port in prefill:
            if any(told(port, "baton_replica_queued_tokens{")):
                return process
    raise AssertionError(f"neither was seen to compute: {asked.result().text}")


def test_one_trace_joins_all_processes_though_the_prefill_replica_is_killed(live: Live) -> None:
    server, collector = live.server, live.collector
    wait_for(lambda: len(list(pages(server, "Prefill"))) == 2)
    wait_for(lambda: all_know_both(server))
    prefill = list(pages(server, "Prefill"))
    prompt = "\n".join(CODE[at:] for at in range(4))[:6000]

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(complete, live, prompt, **dict(CONTEXT))
        who_computes(prefill, asked).kill()
        answer = asked.result()
    wait_for(lambda: all(map(collector.named, ROOTS)) and not collector.orphans())

    assert answer.status_code == STATUS_OK, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 8
    collector.assert_connected()
    [decode] = collector.named("decode")
    lost, *others = collector.named("ask for prefill")
    computed = collector.named("prefill")
    assert lost.status.code == 2, "it was killed too late"
    assert lost.parent_span_id == decode.span_id
    assert not decode.status.code
    parents = {decode.span_id, *(one.span_id for one in others)}
    assert computed and {one.parent_span_id for one in computed} <= parents
    assert {service for service, _ in collector.spans} >= {"baton-gateway", "baton-decode"}


@needs("prometheus")
async def test_no_panel_of_a_live_deployment_is_empty_and_nothing_is_told_twice(
    live: Live, tmp_path: Path
) -> None:
    roles = ("Gateway", "Prefill", "Decode")

    def found() -> list[int]:
        return [port for role in roles for _, port in pages(live.server, role)]

    await asyncio.to_thread(wait_for, lambda: len(found()) == NUM_GATEWAYS + 3)
    requests = "baton_gateway_requests_total{"
    num_before = sum(sum(told(port, requests)) for _, port in pages(live.server, "Gateway"))
    over = Event()
    asking = asyncio.create_task(asyncio.to_thread(keep_asking, live, over))
    with prometheus(tmp_path, [Targets(ports=found())]) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            asked = [
                (where, expr)
                for where, expr in panels()
                if not any(name in expr for name in ON_KUBERNETES)
            ]
            empty = await until_nothing_is_left(http, asked)
            over.set()
            num_in_all = num_before + await asking
            times = {kind: await times_told(http, kind) for kind in ("gateway", "planner|replica")}
            counted = 0.0
            while counted < num_in_all:  # the last scrape was before the last request
                await asyncio.sleep(1)
                [counted] = await ask(http, "sum(baton_gateway_requests_total)")

    assert not empty
    assert times == {"gateway": NUM_GATEWAYS, "planner|replica": 1}
    assert counted == num_in_all


def keep_asking(live: Live, over: Event) -> int:
    """Different prompts, some of them again, until it is over. How many in all."""
    for number in count(1):
        start = number % 40 * 31
        answer = complete(live, CODE[start : start + 700])
        assert answer.status_code == STATUS_OK, answer.text
        if over.is_set():
            break
    return number
