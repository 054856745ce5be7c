"""Where a process of the cluster is reached by the others."""

from __future__ import annotations

import ray

from baton.platform.config.deployment import DeploymentConfig


def own_address(config: DeploymentConfig) -> str:
    """Where this process listens. Replicas trust each other: on one machine, to nobody else."""
    if not config.ray.address:
        return "127.0.0.1"
    node_id = ray.get_runtime_context().get_node_id()
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    [address] = [node["NodeManagerAddress"] for node in nodes if node["NodeID"] == node_id]
    return str(address)
