"""The CPU time of a Prometheus scrape in the process that is scraped.

    python -m bench.serving.scraping [--scrapes 300]

A deployment answers some requests, so that all its series exist. Then each of its processes is
scraped again and again, and its CPU time compared with an equally long time without scrapes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import httpx
import psutil

from bench.harness.command_line import benchmark_parser
from bench.harness.live_deployment import LiveDeployment
from bench.harness.report import surroundings, table
from bench.serving.startup import CONFIG, QUESTION, by_kind

NUM_REQUESTS = 50
PERIOD_S = 15.0
"""Seconds between two scrapes, as in the chart's monitors."""
NUM_REPLICAS = 16


def measure(num_scrapes: int) -> Iterator[tuple[str, float, int]]:
    """CPU milliseconds of a scrape and bytes of its answer, by role."""
    with LiveDeployment(CONFIG) as deployment:
        asyncio.run(_ask(deployment.wait()))
        kinds = by_kind(deployment.processes())
        for role in ("Gateway", "Prefill", "Decode"):
            [process] = kinds["Baton", role]
            yield role.lower(), *_scraped(process, num_scrapes)


async def _ask(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        answers = await asyncio.gather(
            *(http.post("/v1/completions", json=QUESTION) for _ in range(NUM_REQUESTS))
        )
    for answer in answers:
        answer.raise_for_status()


def _scraped(process: psutil.Process, num_scrapes: int) -> tuple[float, int]:
    url = _page(process)
    with httpx.Client() as prometheus:  # one connection for all scrapes, as Prometheus does
        answer = prometheus.get(url)
        before, began_s = _cpu_s(process), time.perf_counter()
        for _ in range(num_scrapes):
            answer = prometheus.get(url)
    spent_s, seconds = _cpu_s(process) - before, time.perf_counter() - began_s
    before = _cpu_s(process)
    time.sleep(seconds)
    idle_s = _cpu_s(process) - before
    return (spent_s - idle_s) * 1e3 / num_scrapes, len(answer.content)


def _page(process: psutil.Process) -> str:
    """The metrics page, from one of the ports that the process listens on."""
    for one in process.net_connections("tcp"):
        if one.status == psutil.CONN_LISTEN:
            url = f"http://127.0.0.1:{one.laddr.port}/metrics"
            try:
                answer = httpx.get(url, timeout=2)
            except httpx.HTTPError:
                continue
            if answer.is_success and "baton_" in answer.text:
                return url
    raise RuntimeError(f"process {process.pid} has no page of metrics")


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def report(found: dict[str, tuple[float, int]]) -> str:
    rows = [(role, ms, num_bytes, ms / PERIOD_S / 10) for role, (ms, num_bytes) in found.items()]
    header = ("", "CPU ms a scrape", "bytes", f"% of a core, every {PERIOD_S:.0f} s")
    share = dict((role, share) for role, _, _, share in rows)
    half = NUM_REPLICAS // 2
    total = share["gateway"] + half * (share["prefill"] + share["decode"])
    return (
        f"{table(header, rows)}\n\n{NUM_REPLICAS} replicas and a gateway: {total:.3f} % of a core "
        f"in all"
    )


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--scrapes", type=int, default=300)
    given = parser.parse_args()
    found = {role: (ms, size) for role, ms, size in measure(given.scrapes)}
    print(f"{surroundings()}\n\n{report(found)}")


if __name__ == "__main__":
    main()
