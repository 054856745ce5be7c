"""The gRPC server of one replica: its role's services, and operators' calls.

The operating system chooses the port; others learn it from the registry.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio

from baton.core.chaos import Chaos
from baton.core.errors import EngineFailed, InvalidConfig, InvalidRequest, Unavailable
from baton.core.ids import ReplicaId
from baton.core.replicas import Role
from baton.core.wire_security import PLAIN, WireSecurity
from baton.decode_service.worker import DecodeWorker
from baton.platform.faults.control import unsettle
from baton.platform.faults.events import chaotic_events
from baton.platform.replica.examination import Examiner
from baton.platform.replica.peer_probing import PeerProbing
from baton.prefill_service.worker import PrefillWorker
from baton.proto import replica_pb2 as pb
from baton.proto.capacity_wire import capacity_to_proto
from baton.proto.channels import listen, new_server
from baton.proto.cluster_token import ClusterTokenInterceptor
from baton.proto.kv_events_wire import kv_events_to_proto
from baton.proto.replica_pb2_grpc import ReplicaServicer, add_ReplicaServicer_to_server

Worker = PrefillWorker | DecodeWorker


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of an incarnation."""

    replica_id: ReplicaId
    role: Role
    engine: pb.EngineFacts


class Flips(Protocol):
    """Changes a replica's role."""

    @property
    def current(self) -> pb.Flip | None:
        """The last requested flip, unless it succeeded."""

    async def begin(self, role: Role) -> int:
        """Begin a flip; return the requests that have to leave first. Raises InvalidConfig,
        InvalidRequest and Unavailable if it keeps its role."""

    def give_up(self, why: str) -> None:
        """Cancel a flip that still drains; the caller decides whether the replica continues to
        drain. Raises Unavailable while it turns.
        """


class ReplicaGrpc(ReplicaServicer):
    def __init__(
        self,
        worker: Worker,
        identity: Identity,
        probing: PeerProbing,
        examiner: Examiner,
        chaos: Chaos | None = None,
    ) -> None:
        self._worker = worker
        self._identity = identity
        self._probing = probing
        self._examiner = examiner
        self._chaos = chaos
        self.flips: Flips | None = None
        """Set by the replica's owner before registration, if it can flip."""

    async def Ping(
        self,
        request: pb.PingRequest,
        context: grpc.aio.ServicerContext[pb.PingRequest, pb.PingReply],
    ) -> pb.PingReply:
        return pb.PingReply()

    async def Inspect(
        self,
        request: pb.InspectRequest,
        context: grpc.aio.ServicerContext[pb.InspectRequest, pb.InspectReply],
    ) -> pb.InspectReply:
        core = self._worker.core
        audit = await (core.tally() if request.without_audit else core.audit())
        metrics = self._worker.metrics()
        metrics |= self._probing.metrics()
        if self._chaos is not None:
            metrics |= self._chaos.as_metrics()
        return pb.InspectReply(
            replica_id=self._identity.replica_id,
            epoch=self._worker.core.epoch,
            role=self._identity.role.value,
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
            engine=self._identity.engine,
            flip=None if self.flips is None else self.flips.current,
        )

    async def Examine(
        self,
        request: pb.ExamineRequest,
        context: grpc.aio.ServicerContext[pb.ExamineRequest, pb.ExamineReply],
    ) -> pb.ExamineReply:
        return await self._examiner.examine(request)

    async def ProbePeer(
        self,
        request: pb.ProbePeerRequest,
        context: grpc.aio.ServicerContext[pb.ProbePeerRequest, pb.ProbePeerReply],
    ) -> pb.ProbePeerReply:
        return await self._probing.probe(request)

    async def Drain(
        self,
        request: pb.DrainRequest,
        context: grpc.aio.ServicerContext[pb.DrainRequest, pb.DrainReply],
    ) -> pb.DrainReply:
        await self._check_epoch(request.epoch, context)
        await self._stop_flip("it was ordered to drain instead", context)
        self._worker.begin_drain()
        return pb.DrainReply(num_open=self._worker.num_open)

    async def Undrain(
        self,
        request: pb.DrainRequest,
        context: grpc.aio.ServicerContext[pb.DrainRequest, pb.DrainReply],
    ) -> pb.DrainReply:
        await self._check_epoch(request.epoch, context)
        await self._stop_flip("it was undrained", context)
        self._worker.end_drain()
        return pb.DrainReply(num_open=self._worker.num_open)

    async def Flip(
        self,
        request: pb.FlipRequest,
        context: grpc.aio.ServicerContext[pb.FlipRequest, pb.DrainReply],
    ) -> pb.DrainReply:
        await self._check_epoch(request.epoch, context)
        if self.flips is None:
            detail = f"{self._identity.replica_id} was started for one role alone"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, detail)
        try:
            return pb.DrainReply(num_open=await self.flips.begin(Role(request.role)))
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except (InvalidConfig, InvalidRequest, ValueError) as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    async def ResetPrefixCache(
        self,
        request: pb.ResetPrefixCacheRequest,
        context: grpc.aio.ServicerContext[pb.ResetPrefixCacheRequest, pb.ResetPrefixCacheReply],
    ) -> pb.ResetPrefixCacheReply:
        await self._check_epoch(request.epoch, context)
        try:
            num_blocks = await self._worker.core.reset_prefix_cache()
        except EngineFailed as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return pb.ResetPrefixCacheReply(num_blocks=num_blocks)

    async def WatchKv(
        self,
        request: pb.WatchKvRequest,
        context: grpc.aio.ServicerContext[pb.WatchKvRequest, pb.KvEvents],
    ) -> AsyncIterator[pb.KvEvents]:
        await self._check_epoch(request.epoch, context)
        watch = self._worker.core.kv_feed.watch()
        try:
            if self._chaos is not None:
                watch = chaotic_events(watch, self._chaos)
            async with aclosing(watch) as feed:
                async for events in feed:
                    yield kv_events_to_proto(events)
        except EngineFailed as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    async def Unsettle(
        self,
        request: pb.ChaosRequest,
        context: grpc.aio.ServicerContext[pb.ChaosRequest, pb.ChaosReply],
    ) -> pb.ChaosReply:
        if self._chaos is None:
            detail = "chaos is off; it takes `chaos.enabled: true` in the deployment's config"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, detail)
        try:
            replica_id = self._identity.replica_id
            return unsettle(request, self._chaos, replica_id, self._worker.core.epoch)
        except InvalidRequest as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def _check_epoch(self, epoch: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if epoch != self._worker.core.epoch:
            detail = "another incarnation of this replica was meant"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, detail)

    async def _stop_flip(self, why: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            if self.flips is not None:
                self.flips.give_up(why)
        except Unavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))


class ReplicaServer:
    """`register` adds the role's own services to the server."""

    def __init__(
        self,
        inspect: ReplicaGrpc,
        register: Callable[[grpc.aio.Server], None],
        security: WireSecurity = PLAIN,
    ) -> None:
        self._security = security
        self._strangers = ClusterTokenInterceptor(security)
        self._server = new_server(security, self._strangers)
        add_ReplicaServicer_to_server(inspect, self._server)
        register(self._server)

    def metrics(self) -> dict[str, float]:
        return {"refused_calls_total": self._strangers.num_refused}

    async def start(self, host: str) -> str:
        """Listen on a free port of `host` and return host:port."""
        port = listen(self._server, f"{host}:0", self._security)
        await self._server.start()
        return f"{host}:{port}"

    async def stop(self, grace_s: float = 0.5) -> None:
        await self._server.stop(grace_s)
