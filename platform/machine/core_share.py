"""How many threads a replica computes with, when all replicas run on this machine.

    usable  |  decode  |  prefill  |       compiled operators: their threads give way to the gateway
            |  decode  | prefill  | gw |   torch's own: OpenMP's threads do not, so one core is left

Which of the two it is, is known once the model is loaded. Who sets `resources.num_threads` is taken
at their word. Where a machine has several NUMA nodes a rank has cores of its own: numa_seat.py.
"""

from __future__ import annotations

import torch

from baton.core.cores import usable_cores
from baton.kernels.cpu import operators
from baton.platform.config.deployment import DeploymentConfig


def share_of_cores(config: DeploymentConfig, *, num_left: int = 0) -> int:
    """The cores of one rank of a replica, when `num_left` of them are left to the gateway."""
    return max(1, (int(usable_cores()) - num_left) // num_ranks_of(config))


def num_ranks_of(config: DeploymentConfig) -> int:
    """Ranks of all replicas."""
    return sum(pool.replicas * pool.parallel.size for pool in (config.prefill, config.decode))


def limit_threads() -> None:
    """Keep torch to the cores that this process may use; fewer, as in OMP_NUM_THREADS, stay fewer.

    OpenMP counts cores by affinity, and so does not see the quota of a container.
    """
    torch.set_num_threads(min(torch.get_num_threads(), max(1, int(usable_cores()))))


def num_left_to_gateway(device: str, dtype: str) -> int:
    """Cores that replicas leave which compute on `device` in `dtype`."""
    return 1 if device == "cpu" and not is_compiled(dtype) else 0


def is_compiled(dtype: str) -> bool:
    """Whether what is computed in `dtype` on a CPU is computed by our operators."""
    return operators.runs(torch.empty(0, dtype=getattr(torch, dtype)))
