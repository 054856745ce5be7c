"""The cores of one rank, chosen before it allocates memory.

one NUMA node    its share of all, wherever the system runs its threads (core_share.py)
several          those of its NUMA nodes, to which its threads are bound (numa_binding.py)
"""

from __future__ import annotations

import torch

from baton.kernels.cpu.library import library
from baton.kernels.cpu.thread_places import place_threads
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.config.pools import ResourcesConfig
from baton.platform.machine.core_share import num_ranks_of, share_of_cores
from baton.platform.machine.numa_binding import bind_to_numa_nodes


class RankCores:
    def __init__(
        self, config: DeploymentConfig, resources: ResourcesConfig, *, is_on_cpu: bool
    ) -> None:
        """From now on this process's threads stay on the cores of its NUMA nodes, for as long as
        this object is kept."""
        self._config = config
        self._num_threads = resources.num_threads
        is_kept = is_on_cpu and resources.numa == "auto"
        self._binding = (
            bind_to_numa_nodes(num_ranks_of(config), self._num_threads) if is_kept else None
        )

    def use(self, *, num_left: int = 0) -> None:
        """Set the number of compute threads; replicas leave `num_left` cores to the gateway."""
        torch.set_num_threads(self._num_threads or self._share(num_left))

    def place_threads(self) -> None:
        """Pin compute threads next to the memory that they read. Compiles operators if there are
        none yet, which takes a minute."""
        kernels = library()
        if self._binding is not None and kernels is not None:
            place_threads(kernels, self._binding.places(torch.get_num_threads()))

    def _share(self, num_left: int) -> int:
        if self._binding is None:
            return share_of_cores(self._config, num_left=num_left)
        return self._binding.num_threads(num_left=num_left)
