"""What the planner makes of flips that a gateway has yet to add_report of."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.platform.planner.planned_deployment import Deployment, fails

from baton.core.ids import ReplicaId
from baton.core.replicas import Role
from baton.platform.cluster.registry.planning import keep_planned
from baton.platform.planner.config import PlannerConfig


async def test_flips_that_turn_out_to_be_one_are_not_counted_as_done() -> None:
    """Answers become long, where decode replicas have four places each."""
    deployment = Deployment()
    planner = deployment.planner
    rules = PlannerConfig(
        enabled=True, mode="scale", ttft_s=1.5, period_s=0.001, window_s=30.0, cold_start_s=5.0
    )
    planner.planned = replace(
        planner.planned,
        rules=rules,
        wanted={Role.PREFILL: 6, Role.DECODE: 1},
        max_running={Role.PREFILL: 64, Role.DECODE: 4},
        can_flip=True,
        flip_s=30.0,
    )
    deployment.answer_tokens = 400
    deployment.hear_of(1.0, 15)

    async def always_the_same(giver: Role, taker: Role) -> ReplicaId:
        return deployment.known.replicas[0].replica_id

    planning = asyncio.create_task(
        keep_planned(planner, lambda: deployment.known, fails, always_the_same, dict, dict)
    )
    async with asyncio.timeout(60):
        while not (changes := planner.explain()["changes"]):
            await asyncio.sleep(0.001)
    planning.cancel()

    first = changes[-1]
    assert first["flips"] > 1
    assert first["outcome"].startswith("done in part")
