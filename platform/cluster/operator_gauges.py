"""A replica's load as Ray metrics, for Ray's dashboard."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ray.util.metrics import Gauge

from baton.core.replicas import Role
from baton.platform.replica.assignment import Assignment

if TYPE_CHECKING:
    from baton.platform.replica.lifetime import Lifetime

PERIOD_S = 2.0
GAUGES = {
    "baton_running_requests": "Requests that a replica computes.",
    "baton_waiting_requests": "Requests that wait within a replica.",
    "baton_queued_tokens": "Tokens of prompts that a replica has yet to compute.",
    "baton_kv_used_ratio": "Share of a replica's KV blocks that are not free.",
    "baton_draining": "1 while a replica takes nothing new.",
}
TAGS = ("application", "role", "replica")


async def keep_gauges(assignment: Assignment, life: Lifetime) -> None:
    """Export the replica's own figures as Ray gauges, for ever."""
    gauges = {name: Gauge(name, doc, tag_keys=TAGS) for name, doc in GAUGES.items()}
    role = assignment.role
    while True:
        if life.role is not role:
            for gauge in gauges.values():
                gauge.set(0, _tags(assignment, role))  # Ray keeps exporting the last value
            role = life.role
        for name, value in life.gauges().items():
            gauges[name].set(value, _tags(assignment, role))
        await asyncio.sleep(PERIOD_S)


def _tags(assignment: Assignment, role: Role) -> dict[str, str]:
    own = (assignment.app_name, role.value, assignment.replica_id)
    return dict(zip(TAGS, own, strict=True))
