"""How many replicas of each role fit on the existing nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import ray

from baton.core.replicas import Role
from baton.platform.config.deployment import DeploymentConfig


def node_places(config: DeploymentConfig) -> dict[Role, int]:
    """Raises what Ray raises while its head is away."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return places_of(nodes, config)


def places_of(nodes: Iterable[Mapping[str, Any]], config: DeploymentConfig) -> dict[Role, int]:
    """Replicas that fit on the nodes, by role. Counts total, not free, resources: a pool does not
    share its nodes, and leaving replicas make room."""
    engines = dict.fromkeys(Role, 0)
    for node in nodes:
        if not node["Alive"]:
            continue
        has = node["Resources"]
        for role in Role:
            pool = config.pool(role)
            if pool.placement.admits(node["Labels"]):
                engines[role] += pool.engines_on(has.get("CPU", 0.0), has.get("GPU", 0.0))
    return {role: number // config.pool(role).parallel.data for role, number in engines.items()}
