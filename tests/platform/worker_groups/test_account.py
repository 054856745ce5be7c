"""Why worker groups wait, from Kubernetes to who asks the planner's registry."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.platform.worker_groups.fake_kube import Fault
from tests.platform.worker_groups.simulated_cluster import (
    CLUSTER,
    NAMESPACE,
    SERVICE,
    SimulatedCluster,
    config_of,
    group,
)

from baton.core.clock import ManualClock
from baton.platform.cluster.registry.groups_account import groups_account
from baton.platform.observe.process_port import ProcessPages, ProcessPort

kube_api = pytest.importorskip("baton.platform.worker_groups.kube_api")
from baton.platform.worker_groups.adapter import Adapter  # noqa: E402

QUOTA = 'pods "decode-7" is forbidden: exceeded quota: gpus'
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu",
}
CRASHES = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}


async def test_who_asks_is_told_what_was_patched_and_why_it_waits() -> None:
    ray = SimulatedCluster(
        [group("prefill", "prefill", 1), group("decode", "decode", 2)], config_of({"decode": 2})
    )
    with ray.kube.serve() as url:
        adapter = Adapter(kube_api.connect(url, NAMESPACE, SERVICE), ray, (), ManualClock())
        page = ProcessPort(ProcessPages(explain=adapter.account.explain))
        await page.start("127.0.0.1", 0)
        here = f"http://127.0.0.1:{page.port}/"
        try:
            assert await asyncio.to_thread(groups_account, here) == {
                "looked_at": None,
                "waits": [],
                "done": [],
            }
            ray.want({"decode": 2}, asked={"decode": 4})
            ray.kube.faults.append(Fault("PATCH rayclusters", 409))
            await asyncio.to_thread(adapter.follow)
            conflict = await asyncio.to_thread(groups_account, here)
            await asyncio.to_thread(adapter.follow)
            ray.operate()
            troubled(ray)
            await asyncio.to_thread(adapter.follow)
            found = await asyncio.to_thread(groups_account, here)
        finally:
            await page.stop()
        gone = await asyncio.to_thread(groups_account, here)

    assert [one["cause"] for one in conflict["waits"]] == ["conflict"] and not conflict["done"]
    assert found["done"][-1]["what"] == "decode: 2 -> 4 pods"
    by_cause = {one["cause"]: one["why"] for one in found["waits"]}
    assert by_cause.keys() == {"quota", "pods"} and QUOTA in by_cause["quota"]
    assert by_cause["pods"].startswith("decode: 2 of 4 pods are not up")
    assert "Insufficient nvidia.com/gpu" in by_cause["pods"]
    assert "ImagePullBackOff: no such image" in by_cause["pods"]
    assert found["looked_at"] >= found["waits"][0]["since"] > 0
    assert "does not answer" in gone["trouble"]
    assert "planner.groups_url" in groups_account("")["trouble"]
    assert samples(adapter, "patches_total") == {
        ("RayService", "ok"): 2.0,
        ("RayCluster", "conflict"): 1.0,
        ("RayCluster", "ok"): 1.0,
    }
    waits = samples(adapter, "waits")
    assert (waits[("quota",)], waits[("pods",)], waits[("conflict",)]) == (1.0, 1.0, 0.0)
    assert samples(adapter, "_up_pods")[("decode", "decode")] == 2


def troubled(ray: SimulatedCluster) -> None:
    """Two pods do not come up, and KubeRay may not make another."""
    unscheduled, crashing = ray.pods("decode")[-2:]
    states: dict[str, dict[str, Any]] = {
        unscheduled: {"podIP": "", "phase": "Pending", "conditions": [UNSCHEDULABLE]},
        crashing: {"podIP": "10.9.9.9", "phase": "Pending", "containerStatuses": [_full(CRASHES)]},
    }
    for name, status in states.items():
        ray.kube.put("pods", {**ray.kube.get("pods", name), "status": status})
    failure = {"type": "ReplicaFailure", "status": "True", "message": QUOTA}
    cluster = ray.kube.get("rayclusters", CLUSTER)
    ray.kube.put("rayclusters", {**cluster, "status": {"conditions": [failure]}})


def _full(status: dict[str, Any]) -> dict[str, Any]:
    return {"name": "w", "image": "i", "imageID": "", "ready": False, "restartCount": 0, **status}


def samples(adapter: Adapter, name: str) -> dict[tuple[str, ...], float]:
    [family] = [one for one in adapter.families() if one.name.endswith(name)]
    return {tuple(one.labels.values()): one.value for one in family.samples}
