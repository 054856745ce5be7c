"""The number of compute threads of a replica when all replicas run on this machine.

    usable  |  decode  |  prefill  |       compiled operators: their threads give way to the gateway
            |  decode  | prefill  | gw |   torch's own: OpenMP's threads do not, so one core is left

Which case applies is known once the model is loaded. `resources.num_threads` overrides the share.
On a machine with several NUMA nodes each rank has its own cores: numa_binding.py.
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
    """Limit torch's threads to the cores that this process may use; a lower OMP_NUM_THREADS holds.
    OpenMP counts cores by affinity, and does not see a container's CPU quota.
    """
    torch.set_num_threads(min(torch.get_num_threads(), max(1, int(usable_cores()))))


def num_left_to_gateway(device: str, dtype: str) -> int:
    """Cores that replicas on `device` with `dtype` leave to the gateway."""
    return 1 if device == "cpu" and not is_compiled(dtype) else 0


def is_compiled(dtype: str) -> bool:
    """Whether our operators compute `dtype` on a CPU."""
    return operators.runs(torch.empty(0, dtype=getattr(torch, dtype)))
