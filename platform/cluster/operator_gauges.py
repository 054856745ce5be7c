"""How busy a replica is, told among Ray's metrics of its node, for its dashboard."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ray.util.metrics import Gauge

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
    """For ever: tell Ray what the replica says of itself."""
    own = (assignment.app_name, assignment.role.value, assignment.replica_id)
    tags = dict(zip(TAGS, own, strict=True))
    gauges = {name: Gauge(name, doc, tag_keys=TAGS) for name, doc in GAUGES.items()}
    while True:
        for name, value in life.gauges().items():
            gauges[name].set(value, tags)
        await asyncio.sleep(PERIOD_S)
