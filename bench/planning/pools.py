"""A live deployment under a load that rises and falls: with the planner, and with fixed pools.

    python -m bench.planning.pools [--rate 1] [--seconds 60]

A Ray cluster of its own, `baton deploy`, real gateways and replicas; only the passes of engines
sleep for a given time (bench/paced/workers.py). Arrivals are Poisson at the rate, four times the
rate, and the rate again, for a third of the time each; requests without an answer count as missed
like late ones. Then the same with fixed pools of the planner's average size.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from baton.platform.cluster.local_cluster import OBJECT_STORE_BYTES, ray_environment
from baton.platform.observe.listeners import first_listening
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings
from bench.planning.traces import HIGH, steps

ROLES = ("prefill", "decode")
PROMPT_TOKENS, OUTPUT_TOKENS = 500, 40
TTFT_S, ITL_S = 3.0, 0.15
LOOK_S = 1.0
MAX_REPLICAS = 4
PLANNER = {
    "enabled": True,
    "ttft_s": TTFT_S,
    "itl_s": ITL_S,
    "max_prefill": MAX_REPLICAS,
    "max_decode": MAX_REPLICAS,
    "cold_start_s": 15.0,
    "period_s": 2.0,
    "window_s": 20.0,
    "steady_s": 30.0,
}
TIMEOUT_S = 60.0
ADMIN_PORT = 18002
"""The admin port, or one of the next if it is taken."""
PRELOADED = "baton.platform.cluster.worker_imports,bench.paced.workers"


@dataclass(slots=True)
class Answer:
    share: float
    """When it was sent, as a share of the whole time."""
    ttft_s: float = math.inf
    itl_s: float = math.inf

    @property
    def is_kept(self) -> bool:
        return self.ttft_s <= TTFT_S and self.itl_s <= ITL_S


@dataclass(slots=True)
class Course:
    """What was observed of one run."""

    answers: list[Answer] = field(default_factory=list)
    looks: list[tuple[float, dict[str, int], dict[str, int]]] = field(default_factory=list)
    """Share of the time, wanted replicas, and ready replicas."""
    changes: list[dict[str, Any]] = field(default_factory=list)

    def kept(self, low: float = 0.0, high: float = 1.0) -> float:
        part = [one.is_kept for one in self.answers if low <= one.share < high]
        return sum(part) / max(len(part), 1)

    def mean(self, role: str) -> float:
        return sum(ready[role] for _, _, ready in self.looks) / len(self.looks)

    def reversals(self, role: str) -> int:
        counts = [wanted[role] for _, wanted, _ in self.looks]
        grows = [later > earlier for earlier, later in pairwise(counts) if later != earlier]
        return sum(one is not other for one, other in pairwise(grows))


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each third")
    options = parser.parse_args()
    options.seconds *= 3
    os.environ.update(ray_environment())
    os.environ |= {"RAY_preload_python_modules": PRELOADED}
    from ray.cluster_utils import Cluster  # it reads the environment at its import

    head = {
        "num_cpus": 2 * MAX_REPLICAS + 3,
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        print(surroundings(), flush=True)
        planned = _course({"planner": PLANNER}, options)
        print(_table({"planned": planned}), *map(_shown, planned.changes), sep="\n", flush=True)
        means = {role: max(round(planned.mean(role)), 1) for role in ROLES}
        fixed = _course({role: {"replicas": means[role]} for role in ROLES}, options)
        print(_table({"fixed pools": fixed}))
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


def _course(sections: dict[str, Any], options: argparse.Namespace) -> Course:
    config = {
        "dtype": "float32",
        "gateway": {
            "port": 0,
            "grpc_port": 0,
            "admin_port": ADMIN_PORT,
            "host": "127.0.0.1",
            "short_prompt_tokens": 0,
        },
        "health": {"drain_s": 20},
        **sections,
    }
    for role in ROLES:
        pool = {"cache": {"num_blocks": 2048}, "resources": {"num_threads": 1}}
        config[role] = {**pool, **config.get(role, {})}
    config["decode"] |= {"max_open": 4, "scheduler": {"max_running": 4}}
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        file = Path(folder) / "baton.yaml"
        file.write_text(json.dumps(config))  # JSON is YAML
        said = _baton("deploy", "-f", str(file))
        port = int(said.rpartition("HTTP on port ")[2].split(",")[0])
    try:
        return asyncio.run(_loaded(f"http://127.0.0.1:{port}", options))
    finally:
        _baton("undeploy")


def _baton(*command: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "baton.platform.cli.main", *command],
        env={**os.environ, "COLUMNS": "200"},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return ran.stdout


async def _loaded(url: str, options: argparse.Namespace) -> Course:
    course, began_s = Course(), time.monotonic()
    told = f"http://127.0.0.1:{first_listening('127.0.0.1', ADMIN_PORT)}"
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits) as http:
        looking = asyncio.create_task(_look(http, told, course, began_s, options.seconds))
        asking: list[asyncio.Task[None]] = []
        draw, share = random.Random(0), 0.0
        while True:
            await asyncio.sleep(draw.expovariate(HIGH * options.rate))
            share = (time.monotonic() - began_s) / options.seconds
            if share >= 1:
                break
            if draw.random() < steps(share) / HIGH:
                answer = Answer(share)
                course.answers.append(answer)
                asking.append(asyncio.create_task(_ask(http, answer, draw.randrange(1 << 30))))
        await asyncio.gather(*asking)
        looking.cancel()
        course.changes = (await http.get(f"{told}/debug/planner")).json().get("changes", [])[::-1]
    return course


async def _ask(http: httpx.AsyncClient, answer: Answer, number: int) -> None:
    """Send a prompt without a cached prefix."""
    draw = random.Random(number)
    body = {
        "prompt": [draw.randrange(100, 4000) for _ in range(PROMPT_TOKENS)],
        "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "stream": True, "temperature": 0,
    }  # fmt: skip
    asked_s, first_s, num_events = time.monotonic(), 0.0, 0
    try:
        async with http.stream("POST", "/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    first_s = first_s or time.monotonic()
                    num_events += 1
    except httpx.HTTPError:
        return
    if num_events:
        answer.ttft_s = first_s - asked_s
        answer.itl_s = (time.monotonic() - first_s) / (OUTPUT_TOKENS - 1)


async def _look(
    http: httpx.AsyncClient, told: str, course: Course, began_s: float, lasts_s: float
) -> None:
    while True:
        page = (await http.get(f"{told}/metrics")).text
        share = (time.monotonic() - began_s) / lasts_s
        course.looks.append((share, _gauge(page, "wanted"), _gauge(page, "ready")))
        await asyncio.sleep(LOOK_S)


def _gauge(page: str, which: str) -> dict[str, int]:
    found = dict.fromkeys(ROLES, 0)
    for line in page.splitlines():
        if line.startswith(f"baton_gateway_{which}_replicas{{"):
            [role] = [role for role in ROLES if f'role="{role}"' in line]
            found[role] = int(float(line.rsplit(" ", 1)[1]))
    return found


def _shown(change: dict[str, Any]) -> str:
    counts = f"{change['before']} -> {change['after']}: {change['outcome']}"
    return "\n".join([f"- {counts}", *(f"  - {reason}" for reason in change["reasons"])])


def _table(courses: dict[str, Course]) -> str:
    lines = [
        "| | SLO attainment | in each third | requests | no answer | "
        "mean ready, prefill + decode | reversals |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, one in courses.items():
        thirds = " ".join(f"{one.kept(part / 3, (part + 1) / 3):.0%}" for part in range(3))
        unanswered = sum(answer.ttft_s == math.inf for answer in one.answers)
        means = " + ".join(f"{one.mean(role):.2f}" for role in ROLES)
        reversals = " + ".join(str(one.reversals(role)) for role in ROLES)
        lines.append(
            f"| {name} | {one.kept():.1%} | {thirds} | {len(one.answers)} | {unanswered} | "
            f"{means} | {reversals} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
