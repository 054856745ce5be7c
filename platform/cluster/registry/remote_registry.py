"""Clients of one or several registries, through Serve."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from ray.serve.handle import DeploymentHandle

from baton.core.errors import Unavailable
from baton.core.ids import Epoch
from baton.core.replicas import ReplicaInfo, ReportIntervals, StartingReplica
from baton.gateway.fleet.traffic import TrafficReport
from baton.platform.cluster.registry.all_registries import AllRegistries
from baton.platform.cluster.registry.gateway_registries import GatewayRegistries
from baton.platform.planner.planner_metrics import PlannerReply
from baton.platform.security.config import SecurityConfig

if TYPE_CHECKING:
    from baton.platform.cluster.registry.heartbeat_client import HeartbeatClient

Handle = DeploymentHandle[Any]

REGISTRY_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class RemoteRegistry:
    """A client of one registry. Raises Ray's errors when it is away."""

    handle: Handle
    heartbeats: HeartbeatClient | None = None
    """A replica's client for heartbeats that need not go through Serve."""

    @property
    def is_cut(self) -> bool:
        """Whether the connection broke: the registry may have ended, or count the replica as
        gone."""
        return self.heartbeats is not None and self.heartbeats.is_cut

    async def heartbeat(self, info: ReplicaInfo) -> float:
        """Returns the seconds until the next one, unless there is news before."""
        client = self.heartbeats
        intervals = None if client is None else await client.beat(info)
        if intervals is None:
            telling = 0 if client is None else client.next_telling()
            from baton.proto.membership_wire import heartbeat_to_proto
            from baton.proto.replica_pb2 import HeartbeatReply

            told = heartbeat_to_proto(info, telling).SerializeToString()
            reply = HeartbeatReply.FromString(await _answer(self.handle.heartbeat.remote(told)))
            if reply.refusal:
                raise Unavailable(reply.refusal)
            address = reply.address
            intervals = ReportIntervals(beat_s=reply.beat_s, whole_s=reply.whole_s)
            if client is not None:
                client.has_told(info, telling, address, intervals)
        return intervals.beat_s

    async def leave(self, epoch: Epoch) -> None:
        telling = 0
        if self.heartbeats is not None:
            self.heartbeats.hang_up()
            telling = self.heartbeats.next_telling()
        await _answer(self.handle.leave.remote(epoch, telling))

    async def report_starting(self, starting: StartingReplica) -> float:
        """Returns the seconds until the next progress report."""
        from baton.proto.membership_wire import starting_to_proto

        told = starting_to_proto(starting).SerializeToString()
        answer: float | str = await _answer(self.handle.report_starting.remote(told))
        if isinstance(answer, str):
            raise Unavailable(answer)
        return answer

    async def spare(self, epoch: Epoch, may_be_last: bool) -> str:
        why: str = await _answer(self.handle.spare.remote(epoch, may_be_last))
        return why

    async def share_limits(self, gateway: Epoch, demand: Mapping[str, float]) -> dict[str, float]:
        call = self.handle.share_limits.remote(gateway, demand)
        shares: dict[str, float] = await _answer(call)
        return shares

    async def report_traffic(self, gateway: Epoch, report: TrafficReport) -> PlannerReply:
        told = msgspec.msgpack.encode(report)
        answer = await _answer(self.handle.report_traffic.remote(gateway, told))
        return msgspec.msgpack.decode(answer, type=PlannerReply)

    async def explain_planner(self) -> dict[str, Any]:
        told: dict[str, Any] = await _answer(self.handle.explain_planner.remote())
        return told


def replicas_registry(
    handles: Sequence[Handle], heartbeats: SecurityConfig | None = None
) -> RemoteRegistry | AllRegistries:
    """A replica's client of all registries. `heartbeats`: the security of direct heartbeats; None:
    all go through Serve."""
    lines = [RemoteRegistry(handle, _heartbeats(heartbeats)) for handle in handles]
    return lines[0] if len(lines) == 1 else AllRegistries(lines)


def _heartbeats(security: SecurityConfig | None) -> HeartbeatClient | None:
    if security is None:
        return None
    from baton.platform.cluster.registry.heartbeat_client import HeartbeatClient  # see `deploy.py`

    return HeartbeatClient(security)


def gateways_registry(handles: Sequence[Handle]) -> RemoteRegistry | GatewayRegistries:
    """A gateway's client of all registries."""
    lines = [RemoteRegistry(handle) for handle in handles]
    return lines[0] if len(lines) == 1 else GatewayRegistries(lines)


async def _answer(call: Awaitable[Any]) -> Any:
    """Raises TimeoutError. Python 3.11's `wait_for` can lose a cancellation that comes together
    with the answer, so that a periodic caller would never end."""
    async with asyncio.timeout(REGISTRY_TIMEOUT_S):
        return await call
