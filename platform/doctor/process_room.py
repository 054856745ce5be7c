"""Whether the processes of a deployment fit into memory; works without torch and model."""

from __future__ import annotations

from baton.core.errors import InvalidConfig
from baton.core.replicas import counts_by_role
from baton.core.wording import count_of
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
    replicas = counts_by_role(config.wanted_replicas)
    raise InvalidConfig(
        f"too little memory: the processes of {replicas} need {gib(wanted)} without weights and "
        f"caches, and there are {left_of(memory)}; start fewer replicas (one, --prefill 0 "
        f"--decode 1): there is room for at most {count_of(num_ranks, 'process', 'processes')}; or "
        "give the machine or the container more memory"
    )
