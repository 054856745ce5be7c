"""The address of a process for the others of the cluster."""

from __future__ import annotations

import ray

from baton.platform.config.deployment import DeploymentConfig


def own_address(config: DeploymentConfig) -> str:
    """The address on which this process listens: loopback for a cluster on one machine."""
    if not config.ray.address:
        return "127.0.0.1"
    node_id = ray.get_runtime_context().get_node_id()
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    [address] = [node["NodeManagerAddress"] for node in nodes if node["NodeID"] == node_id]
    return str(address)
