"""The registry's own gRPC port: unchanged heartbeats, and watches of gateways."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import grpc.aio

from baton.core.errors import InvalidConfig
from baton.core.ids import Epoch
from baton.platform.registry.registry import Registry
from baton.platform.security.config import SecurityConfig
from baton.platform.security.connections import load_security
from baton.proto import replica_pb2 as pb
from baton.proto.channels import listen, new_server
from baton.proto.membership_wire import (
    heartbeat_from_proto,
    starting_from_proto,
    update_to_proto,
)
from baton.proto.replica_pb2_grpc import RegistryServicer, add_RegistryServicer_to_server

log = logging.getLogger(__name__)

LOOK_S = 10.0
"""Seconds between checks whether the holder of a call is still known."""


class RegistryPort(RegistryServicer):
    def __init__(self, registry: Registry) -> None:
        self.address = ""
        """The address, once it listens."""
        self.num_held = Counter[Epoch]()
        """Held calls, by replica."""
        self._registry = registry
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, security: SecurityConfig) -> None:
        """Listen on a free port, or on none if it cannot be bound or secured as configured."""
        try:
            secured_by = load_security(security)
            self._server = new_server(secured_by, pings=False)
            add_RegistryServicer_to_server(self, self._server)
            port = listen(self._server, f"{host}:0", secured_by)
        except (InvalidConfig, RuntimeError) as error:
            log.warning("%s; the registry is called through Serve alone", error)
            return
        await self._server.start()
        self.address = f"{host}:{port}"

    async def stop(self) -> None:
        """Stop. Safe to repeat, and if never started."""
        self.address = ""
        if self._server is not None:
            await self._server.stop(None)

    async def Beat(
        self,
        request: pb.BeatRequest,
        context: grpc.aio.ServicerContext[pb.BeatRequest, pb.BeatReply],
    ) -> pb.BeatReply:
        return self._beat(request)

    async def Stay(
        self,
        request: pb.BeatRequest,
        context: grpc.aio.ServicerContext[pb.BeatRequest, pb.BeatReply],
    ) -> pb.BeatReply:
        answer, epoch = self._beat(request), Epoch(request.epoch)
        if not answer.is_known:
            return answer
        self.num_held[epoch] += 1
        try:
            while self._registry.is_alive(epoch):  # a vanished machine would hold it for ever
                await asyncio.sleep(LOOK_S)
        finally:  # otherwise the caller has ended it, and may hold a new one
            self.num_held[epoch] -= 1
            if not self.num_held[epoch]:
                del self.num_held[epoch]
                self._registry.hang_up(epoch)
        return pb.BeatReply(is_known=False)

    def _beat(self, request: pb.BeatRequest) -> pb.BeatReply:
        is_known = self._registry.beat(Epoch(request.epoch), request.telling)
        intervals = self._registry.intervals
        return pb.BeatReply(is_known=is_known, beat_s=intervals.beat_s, whole_s=intervals.whole_s)

    async def Watch(
        self,
        request: pb.WatchRequest,
        context: grpc.aio.ServicerContext[pb.WatchRequest, pb.MembershipUpdate],
    ) -> pb.MembershipUpdate:
        return await self.watch(request)

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        """Take a replica's full report, through Serve; return the address and intervals for its
        next heartbeats."""
        try:
            info = heartbeat_from_proto(request)
        except ValueError as error:
            return pb.HeartbeatReply(refusal=_refused(request.replica.replica_id, error))
        intervals = self._registry.heartbeat(info, request.telling)
        return pb.HeartbeatReply(
            address=self.address, beat_s=intervals.beat_s, whole_s=intervals.whole_s
        )

    def receive_starting(self, request: pb.StartingReplica) -> float | str:
        """Take a starting replica's report, through Serve; return the seconds until the next, or
        why it is refused."""
        try:
            starting = starting_from_proto(request)
        except ValueError as error:
            return _refused(request.replica_id, error)
        return self._registry.report_starting(starting)

    async def watch(self, request: pb.WatchRequest) -> pb.MembershipUpdate:
        """Answer a watch. A caller that came through Serve learns this port's address."""
        incarnation = Epoch(request.incarnation) or None
        registry, version = self._registry, request.version
        await registry.until_news(incarnation, version, registry.patience_s)
        answer = update_to_proto(registry.update(incarnation, version))
        answer.address = self.address
        return answer


def _refused(replica_id: str, error: ValueError) -> str:
    why = f"{replica_id} is of another version than the registry: {error}"
    log.warning("not registered: %s", why)
    return f"{why}; finish the update of the deployment"
