"""Whether the processes of a deployment fit into memory; works without torch and model."""

from __future__ import annotations

from baton.core.errors import InvalidConfig
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.doctor.node_checks import gib, left_of
from baton.platform.machine.memory import MemoryFacts

RANK_BYTES = 240 << 20
"""Memory of a rank's process without weights and KV: torch, Ray, gRPC."""
RAY_BYTES = 800 << 20
"""Ray's own processes, a registry, the gateway and `baton serve`."""
REGISTRY_BYTES = 100 << 20
"""Memory of each further registry."""


def process_bytes(config: DeploymentConfig) -> int:
    """Memory of all processes, without weights and KV."""
    pools = (config.prefill, config.decode)
    num_ranks = sum(pool.replicas * pool.parallel.size for pool in pools)
    return RAY_BYTES + (config.registry.replicas - 1) * REGISTRY_BYTES + num_ranks * RANK_BYTES


def check_process_room(config: DeploymentConfig, memory: MemoryFacts) -> None:
    """Raises InvalidConfig if they cannot fit even if others free memory, and fewer replicas would.
    Not checked for a joined cluster.
    """
    num_ranks = (memory.most - RAY_BYTES) // RANK_BYTES
    wanted = process_bytes(config)
    if config.ray.address or not memory.whole or wanted <= memory.most or num_ranks < 1:
        return
    raise InvalidConfig(
        f"too little memory: the processes of {counted(config)} need {gib(wanted)} without "
        f"weights and caches, and there are {left_of(memory)}; start fewer replicas (one, "
        f"--prefill 0 --decode 1): at most {num_ranks} processes fit; or give the machine or the "
        "container more memory"
    )


def counted(config: DeploymentConfig) -> str:
    counts = [f"{number} {role}" for role, number in config.wanted_replicas.items()]
    return f"{' and '.join(counts)} replicas"
