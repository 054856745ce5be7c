"""The assignment of a replica: role, identity, configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from baton.core.ids import Epoch, ReplicaId
from baton.core.replicas import ReplicaInfo, Role, StartingReplica
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.config.pools import PoolConfig


class RegistryClient(Protocol):
    @property
    def is_cut(self) -> bool:
        """Whether a heartbeat is due at once."""

    async def heartbeat(self, info: ReplicaInfo) -> float:
        """Returns the seconds until the next one; news are sent earlier."""

    async def leave(self, epoch: Epoch) -> None: ...
    async def report_starting(self, starting: StartingReplica) -> float:
        """Returns the seconds until the next progress report."""

    async def spare(self, epoch: Epoch, may_be_last: bool) -> str: ...


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment that all ranks of a replica get."""

    app_name: str
    """The name of the Serve application."""
    config: DeploymentConfig
    role: Role
    """Role of the pool that it is started in; it may take the other."""
    folder: Path
    replica_id: ReplicaId
    """The id of rank 0; for another rank that leads, its own id."""
    registry: RegistryClient
    node: str = ""
    """The node that has the model folder; empty: all nodes do."""
    draft: str = ""
    """The draft model as configured; `config` has its folder."""
    adapters: Mapping[str, Path] = field(default_factory=dict)
    """Folders of the adapters by name; `config` has what was configured."""

    def actor_name(self, process: int) -> str:
        """Name of the actor in Ray's dashboard and logs. Serve gives every start of a replica a new
        id, so the name is never in use."""
        return f"{self.app_name}:{self.replica_id}:process-{process}"

    def task_name(self, rank: int) -> str:
        """The name of the task that this rank's actor runs."""
        return f"{self.app_name}:{self.replica_id}:rank-{rank}"

    @property
    def pool(self) -> PoolConfig:
        return self.config.pool(self.role)
