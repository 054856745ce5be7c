"""Pools that the planner sizes on a live cluster, beside a person who sizes them, too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests.cluster.deployments import Deployed, Nodes, application, bearer, load
from tests.cluster.test_live_cluster import wait_for

from baton.platform.observe.listeners import first_listening

pytestmark = [pytest.mark.cluster, pytest.mark.wide]

RULES = {"enabled": True, "period_s": 0.5, "window_s": 3.0, "steady_s": 3.0, "cold_start_s": 5.0}


@dataclass(frozen=True, slots=True)
class Both:
    """Of two applications that start, and end, at once."""

    planned: Deployed
    sleepy: Deployed


@pytest.fixture(scope="module")
def both(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("planned")
    apps = (
        application(nodes, folder, "planned", planner={**RULES, "min_prefill": 2}),
        application(nodes, folder, "sleepy", planner={**RULES, "idle_s": 5.0}),
    )
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(Deployed.deploy, apps))
        yield Both(*apps)
        list(threads.map(Deployed.undeploy, apps))


def explained(app: Deployed) -> dict[str, Any]:
    port = first_listening("127.0.0.1", app.admin_port)
    url = f"http://127.0.0.1:{port}/debug/planner"
    answer = httpx.get(url, headers=bearer("old"), timeout=60)
    answer.raise_for_status()
    told: dict[str, Any] = answer.json()
    return told


async def test_the_planner_sizes_pools_under_load_and_gives_way_to_a_person(both: Both) -> None:
    app = both.planned

    def has(num_prefill: int) -> bool:
        return len(app.epochs()["prefill"]) == num_prefill

    await asyncio.to_thread(wait_for, lambda: has(2))
    # Among them, not alone: what could not be done at first is told as well.
    scaled = [one for one in explained(app)["changes"] if one["outcome"] == "scaled"]
    assert (1, 2) in [(one["before"]["prefill"], one["after"]["prefill"]) for one in scaled]

    async with load(app.url, num_clients=1) as statuses:
        rules = {**RULES, "min_prefill": 1, "max_prefill": 1}
        told = await asyncio.to_thread(app.deploy, planner=rules)
        assert "the planner has set" not in told  # 2 are more than may be by now
        await asyncio.to_thread(wait_for, lambda: has(1))
    assert set(statuses) == {200}

    await asyncio.to_thread(app.scale, "prefill=2")
    await asyncio.sleep(2)
    assert has(2)
    latest: dict[str, Any] = {}

    def is_held() -> bool:
        latest.update(explained(app)["latest"])
        return bool(latest["outcome"] == "held")

    await asyncio.to_thread(wait_for, is_held)
    assert latest["after"]["prefill"] == 2
    assert any("prefill: set by hand" in reason for reason in latest["reasons"])


async def test_pools_go_to_zero_and_come_back_for_who_asks(both: Both) -> None:
    app = both.sleepy

    def sleeps() -> bool:
        pools = explained(app)["pools"].values()
        return not any(one["ready"] or one["wanted"] for one in pools)

    await asyncio.to_thread(wait_for, sleeps)
    ready = httpx.get(f"{app.url}/ready", timeout=60)
    body = {"prompt": "def add(a, b):", "max_tokens": 4, "temperature": 0}
    answer = httpx.post(f"{app.url}/v1/completions", json=body, headers=bearer("old"), timeout=120)

    assert ready.status_code == answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 4
    changes = [one["after"] for one in explained(app)["changes"]]
    assert {"prefill": 0, "decode": 0} in changes
