"""The gRPC server of one replica: its role's services, and the books it opens to operators.

The operating system chooses the port; the registry tells it to the others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Protocol

import grpc
import grpc.aio

from baton.core.errors import EngineFailed
from baton.core.ids import Epoch, ReplicaId
from baton.core.messages import Capacity, Role
from baton.engine.kv_feed import KvFeed
from baton.kv_transfer.auditor import AuditReport
from baton.proto import replica_pb2 as pb
from baton.proto.channel_options import SERVER_OPTIONS
from baton.proto.kv_events_wire import kv_events_to_proto
from baton.proto.replica_pb2_grpc import ReplicaServicer, add_ReplicaServicer_to_server
from baton.proto.wire import capacity_to_proto


class Worker(Protocol):
    """What both roles have in common."""

    epoch: Epoch
    kv_feed: KvFeed

    async def start(self) -> None: ...
    async def drain(self) -> None: ...
    async def stop(self) -> None: ...
    def check_health(self, *, limit_s: float) -> None: ...
    async def audit(self) -> AuditReport: ...
    def capacity(self) -> Capacity: ...
    def metrics(self) -> dict[str, float]: ...


class ReplicaGrpc(ReplicaServicer):
    def __init__(self, worker: Worker, replica_id: ReplicaId, role: Role) -> None:
        self._worker = worker
        self._replica_id = replica_id
        self._role = role

    async def Inspect(
        self,
        request: pb.InspectRequest,
        context: grpc.aio.ServicerContext[pb.InspectRequest, pb.InspectReply],
    ) -> pb.InspectReply:
        audit = await self._worker.audit()
        metrics = self._worker.metrics()
        return pb.InspectReply(
            replica_id=self._replica_id,
            epoch=self._worker.epoch,
            role=self._role.value,
            audit=pb.Audit(
                num_blocks=audit.num_blocks,
                quarantined=audit.quarantined,
                leased=audit.leased,
                live=audit.live,
                cached=audit.cached,
                free=audit.free,
                violations=audit.violations,
            ),
            capacity=capacity_to_proto(self._worker.capacity()),
            metrics=[pb.Metric(name=name, value=value) for name, value in metrics.items()],
        )

    async def WatchKv(
        self,
        request: pb.WatchKvRequest,
        context: grpc.aio.ServicerContext[pb.WatchKvRequest, pb.KvEvents],
    ) -> AsyncIterator[pb.KvEvents]:
        if request.epoch != self._worker.epoch:
            detail = "another incarnation of this replica was meant"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, detail)
        try:
            async with aclosing(self._worker.kv_feed.watch()) as feed:
                async for events in feed:
                    yield kv_events_to_proto(events)
        except EngineFailed as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))


class ReplicaServer:
    """`register` adds the role's own services to the server."""

    def __init__(self, inspect: ReplicaGrpc, register: Callable[[grpc.aio.Server], None]) -> None:
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        add_ReplicaServicer_to_server(inspect, self._server)
        register(self._server)

    async def start(self, host: str) -> str:
        """Listen on a free port of `host` and return host:port."""
        port = self._server.add_insecure_port(f"{host}:0")
        await self._server.start()
        return f"{host}:{port}"

    async def stop(self, grace_s: float = 0.5) -> None:
        await self._server.stop(grace_s)
