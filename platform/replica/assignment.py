"""What a replica is to be."""

from __future__ import annotations

from dataclasses import dataclass
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
        """Returns the seconds until the next one, unless there is news before."""

    async def leave(self, epoch: Epoch) -> None: ...
    async def report_starting(self, starting: StartingReplica) -> float:
        """Returns the seconds until it is to say how much further it is."""

    async def spare(self, epoch: Epoch, may_be_last: bool) -> str: ...


@dataclass(frozen=True, slots=True)
class Assignment:
    """What all ranks of a replica are told."""

    app_name: str
    """The name of the Serve application."""
    config: DeploymentConfig
    role: Role
    """Role of the pool that it is started in; it may take the other."""
    folder: Path
    replica_id: ReplicaId
    """The id of rank 0; of a rank that leads, its own."""
    registry: RegistryClient
    node: str = ""
    """The node that has it there; empty: all do."""
    draft: str = ""
    """What drafts for it, as it is configured: `config` names its folder."""

    def actor_name(self, seat: int) -> str:
        """Name of the actor in Ray's dashboard and logs. Serve draws a new id for every start of a
        replica, so no name is in use when it is given, whoever is still about to end."""
        return f"{self.app_name}:{self.replica_id}:seat-{seat}"

    def task_name(self, rank: int) -> str:
        """The name of what the actor that has become this rank runs."""
        return f"{self.app_name}:{self.replica_id}:rank-{rank}"

    @property
    def pool(self) -> PoolConfig:
        return self.config.pool(self.role)
