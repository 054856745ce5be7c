"""From one registry to three under load, and each of them killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import psutil
import pytest
from tests.cluster.deployments import Deployed, Nodes, application, load
from tests.cluster.test_live_cluster import wait_for
from tests.cluster.test_planned import RULES, explained

pytestmark = [pytest.mark.cluster, pytest.mark.wide, pytest.mark.timeout(1800)]

APP = "registries"
NAMES = ("Registry", "Registry-1", "Registry-2")


@pytest.fixture
def app(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    planner = {**RULES, "mode": "observe"}
    app = application(nodes, tmp_path_factory.mktemp(APP), APP, planner=planner)
    app.deploy()
    yield app
    app.undeploy()


async def test_requests_go_on_while_registries_are_added_and_killed(app: Deployed) -> None:
    async with load(app.url, num_clients=1) as statuses:
        await asyncio.to_thread(app.deploy, registry={"replicas": 3})
        await asyncio.to_thread(wait_for, lambda: heard(app) == dict.fromkeys(NAMES, 2))
        serving = app.epochs()
        for name in ("Registry-1", "Registry"):
            pid = registries(app)[name]["pid"]
            psutil.Process(pid).kill()
            await asyncio.to_thread(wait_for, lambda: explained(app)["gateways"]["heard"] == 1)
            await asyncio.to_thread(wait_for, partial(is_anew, app, name, pid))
            await asyncio.to_thread(wait_for, lambda: heard(app) == dict.fromkeys(NAMES, 2))
        num_before = len(statuses)
        await asyncio.to_thread(wait_for, lambda: len(statuses) > num_before)

    assert set(statuses) == {200}
    assert app.epochs() == serving


def registries(app: Deployed) -> dict[str, dict[str, Any]]:
    """Their rows of `baton top`, by deployment."""
    [told] = json.loads(app.cluster.baton("top", "--json", "--app-name", APP))
    rows: list[dict[str, Any]] = told["replicas"]
    return {row["deployment"]: row for row in rows if row["deployment"] in NAMES}


def is_anew(app: Deployed, name: str, pid: int) -> bool:
    row = registries(app).get(name, {})  # for a moment it may have none
    return row.get("pid") not in (pid, None)


def heard(app: Deployed) -> dict[str, int]:
    """How many replicas each registry knows that a gateway hears."""
    return {
        name: row["says"]["num_replicas"]
        for name, row in registries(app).items()
        if row["says"].get("is_heard")
    }
