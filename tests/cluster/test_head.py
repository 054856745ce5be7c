"""The head of a cluster is killed under load, and comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.cluster.deployments import application, load, three_nodes

pytestmark = [pytest.mark.cluster, pytest.mark.wide]

ON_WORKERS = {"placement": {"labels": {"work": "yes"}}}


async def test_replicas_serve_on_without_their_head_and_are_managed_again_when_it_is_back(
    tmp_path: Path,
) -> None:
    with three_nodes(str(tmp_path / "control-store")) as nodes:
        pool = {"replicas": 1, **ON_WORKERS}
        app = application(nodes, tmp_path, "held", prefill=pool, decode=pool)
        await asyncio.to_thread(app.deploy, gateway=ON_WORKERS)
        before = await asyncio.to_thread(app.epochs)

        async with load(app.url) as statuses:
            await asyncio.to_thread(nodes.change, "down head")
            alone = len(statuses)
            await asyncio.sleep(5)
            async with asyncio.timeout(120):  # only keeps a failing test from hanging
                while len(statuses) == alone:
                    await asyncio.sleep(0.1)
            await asyncio.to_thread(nodes.change, "up head")
            await asyncio.to_thread(app.scale, "prefill=2")
            after = await asyncio.to_thread(app.epochs)

        assert set(statuses) == {200}
        assert after["decode"] == before["decode"]
        assert before["prefill"] < after["prefill"] and len(after["prefill"]) == 2
