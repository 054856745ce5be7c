"""A gateway as it is deployed, before any replica exists."""

from __future__ import annotations

import asyncio

import httpx

from baton.core.ids import Epoch, ReplicaId
from baton.core.messages import Membership, Role, StartingReplica
from baton.platform.cluster.gateway_node import GatewayNode
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.models.model_folder import find_model

CONFIG = override(
    DeploymentConfig(),
    {
        "gateway.host": "127.0.0.1",
        "gateway.port": 0,
        "gateway.grpc_port": 0,
        "prefill.replicas": 2,
        "decode.replicas": 1,
    },
)
LOADING = StartingReplica(
    replica_id=ReplicaId("decode-1"), role=Role.DECODE, stage="loading weights", fraction=0.5
)


class OneStarts:
    """A registry that has one thing to tell."""

    def __init__(self) -> None:
        self.num_asked = 0

    async def watch(self, incarnation: Epoch | None, version: int) -> Membership:
        self.num_asked += 1
        if self.num_asked > 1:
            await asyncio.Event().wait()
        return Membership(
            incarnation=Epoch("r"), version=1, age_s=1.0, replicas=(), starting=(LOADING,)
        )


async def test_ready_names_all_that_is_configured_and_how_far_it_is() -> None:
    node = GatewayNode(CONFIG, find_model(CONFIG.model))
    registry = OneStarts()
    await node.start(registry)
    try:
        async with httpx.AsyncClient() as http, asyncio.timeout(20):
            while registry.num_asked < 2:
                await asyncio.sleep(0.01)
            answer = await http.get(f"http://127.0.0.1:{node.server.http_port}/ready")
    finally:
        await node.stop(0)

    assert answer.status_code == 503
    assert {it["role"]: (it["wanted"], it["waiting_for"]) for it in answer.json()["missing"]} == {
        "decode": (1, "decode-1: loading weights 50% (0 s)"),
        "prefill": (2, "Ray to start 2 processes"),
    }
