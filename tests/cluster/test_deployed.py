"""`baton deploy`: changed while it serves, beside others, updated, on nodes that are lost."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from tests.cluster.deployments import Cluster, Deployed, Nodes, application, bearer, load
from tests.cluster.test_live_cluster import wait_for
from tests.live_server import Server

pytestmark = pytest.mark.cluster


async def test_a_deployment_changes_under_load_and_nobody_is_started_anew(
    server: Server, tmp_path: Path
) -> None:
    """Beside the application of `baton serve`, on its cluster."""
    app = application(Cluster(server.ray_address()), tmp_path, "hot")
    await asyncio.to_thread(app.deploy)
    before = await asyncio.to_thread(app.epochs)
    assert {pool: len(epochs) for pool, epochs in before.items()} == {"prefill": 1, "decode": 1}

    async with load(app.url) as statuses:
        await asyncio.to_thread(app.scale, "prefill=2")
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
    app.undeploy()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{app.url}/health", timeout=60)


@pytest.mark.wide
@pytest.mark.timeout(900)
async def test_models_that_come_and_go_at_once_an_update_and_the_loss_of_a_node(
    nodes: Nodes, tmp_path: Path
) -> None:
    none = {"replicas": 0}
    first = application(nodes, tmp_path, "first", prefill=none, decode={"replicas": 2})
    second = application(nodes, tmp_path, "second", model="draft", prefill=none)
    third = application(nodes, tmp_path, "third", prefill=none)
    await asyncio.gather(asyncio.to_thread(first.deploy), asyncio.to_thread(second.deploy))
    old = await asyncio.to_thread(first.epochs)
    others = await asyncio.to_thread(second.epochs)
    assert len(old["decode"]) == 2 and len(others["decode"]) == 1

    async with load(first.url) as statuses, load(second.url, num_clients=1) as beside:
        told = await asyncio.to_thread(
            first.deploy, "--dry-run", decode={"replicas": 2, "cache": {"num_blocks": 600}}
        )
        assert "restart" in told and "decode.cache.num_blocks" in told
        assert await asyncio.to_thread(first.epochs) == old
        await asyncio.to_thread(first.deploy)
        # Serve counts none that it has told to end; they say a moment later that they drain.
        await asyncio.to_thread(wait_for, lambda: not first.epochs()["decode"] & old["decode"])

        assert len((await asyncio.to_thread(first.epochs))["decode"]) == 2
        assert await asyncio.to_thread(second.epochs) == others
    assert set(statuses) == set(beside) == {200}

    node_of = await asyncio.to_thread(nodes_of_decode, first)
    down = min(node_of.values())
    lost = {epoch for epoch, node in node_of.items() if node == down}
    await asyncio.to_thread(nodes.change, f"down {down}")
    await asyncio.to_thread(wait_for, lambda: len(first.epochs()["decode"] - lost) == 2)
    async with load(first.url) as statuses:
        await asyncio.sleep(1)
    assert set(statuses) == {200}
    await asyncio.to_thread(nodes.change, "up node")
    await asyncio.to_thread(wait_for, lambda: second.epochs()["decode"])
    stays = await asyncio.to_thread(second.epochs)

    await asyncio.gather(asyncio.to_thread(first.undeploy), asyncio.to_thread(third.deploy))

    shown = await asyncio.to_thread(nodes.baton, "top", "--json")
    assert {one["application"] for one in json.loads(shown)} == {"second", "third"}
    assert await asyncio.to_thread(second.epochs) == stays
    leaving = (
        asyncio.to_thread(nodes.baton, "undeploy", "--app-name", name)
        for name in ("second", "third")
    )
    await asyncio.gather(*leaving)


def nodes_of_decode(app: Deployed) -> dict[str, str]:
    """The node of each decode replica that takes requests, by its epoch."""
    found: dict[str | None, str] = {}

    def are_told() -> bool:
        """Of those that end nothing may be known, and on a busy machine of the others, too."""
        shown = app.cluster.baton("top", "--json", "--app-name", app.config["ray"]["app_name"])
        rows = json.loads(shown)[0]["replicas"]
        found.clear()
        found.update(
            (row["says"].get("epoch"), row["node_id"])
            for row in rows
            if row["deployment"] == "Decode"
        )
        return found.keys() == app.epochs()["decode"]

    wait_for(are_told)
    return {epoch: node for epoch, node in found.items() if epoch is not None}
