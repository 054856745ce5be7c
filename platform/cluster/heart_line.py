"""Heartbeats that say nothing new, from a replica to a port of the registry's own.

    replica --- all of it, through Serve ---> registry
            <-- the address of its port -----
            --- Beat: still as I said ------> known: alive for another while
                                              not known, or no answer: all of it, through Serve

A call through Serve takes both sides several times the CPU. Without this port, or a way to it,
every heartbeat goes through Serve.
"""

from __future__ import annotations

import logging
from typing import Any

import grpc.aio

from baton.core.clock import Clock, monotonic
from baton.core.errors import InvalidConfig
from baton.core.ids import Epoch
from baton.core.replicas import ReplicaInfo
from baton.platform.registry.registry import Registry
from baton.platform.security.config import SecurityConfig
from baton.platform.security.connections import load_security
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels, listen, new_server
from baton.proto.replica_pb2_grpc import (
    RegistryServicer,
    RegistryStub,
    add_RegistryServicer_to_server,
)

log = logging.getLogger(__name__)

ANSWER_S = 0.5
"""Of a port that a firewall keeps from us, nothing is heard: a heartbeat is not late by more."""
WHOLE_S = 10.0
"""All of it goes through Serve as often: Serve may know of another registry by now, and what was
told last may have been heard before what was told earlier."""
AVOIDED_S = 30.0
"""For so long nothing is tried where nobody answered."""


class HeartLine:
    """A replica's end. Belongs to an event loop; who gets a pickled one has a line of his own."""

    def __init__(self, security: SecurityConfig, clock: Clock = monotonic) -> None:
        self._security = security
        self._clock = clock
        self._channel: grpc.aio.Channel | None = None
        self._told: ReplicaInfo | None = None
        self._address = ""
        self._avoided_until_s = self._told_at_s = float("-inf")

    def __reduce__(self) -> tuple[Any, ...]:
        return HeartLine, (self._security,)

    def has_told(self, info: ReplicaInfo, address: str) -> None:
        """The registry has heard all of it, and listens there; empty: nowhere."""
        if address != self._address:
            self._avoided_until_s, self._channel = float("-inf"), None
        self._told, self._told_at_s, self._address = info, self._clock(), address

    async def beat(self, info: ReplicaInfo) -> bool:
        """Whether the registry knows that this is still so; else it is to be told all of it."""
        now = self._clock()
        if info != self._told or now - self._told_at_s >= WHOLE_S:
            return False
        if not self._address or now < self._avoided_until_s:
            return False
        try:
            if self._channel is None:
                channels = Channels(load_security(self._security))
                self._channel = channels.new(self._address, is_pinged=False)
            beat = pb.BeatRequest(epoch=info.epoch)
            reply = await RegistryStub(self._channel).Beat(beat, timeout=ANSWER_S)
        except (grpc.aio.AioRpcError, InvalidConfig) as error:
            log.debug("the registry is told through Serve: %r", error)
            self._avoided_until_s = self._clock() + AVOIDED_S
            return False
        return reply.is_known


class RegistryPort(RegistryServicer):
    """The registry's end."""

    def __init__(self, registry: Registry) -> None:
        self.address = ""
        """Where it listens, once it does."""
        self._registry = registry
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, security: SecurityConfig) -> None:
        """On a free port. Where it cannot be secured as configured, or bound, there is none."""
        try:
            secured_by = load_security(security)
            self._server = new_server(secured_by, pings=False)
            add_RegistryServicer_to_server(self, self._server)
            port = listen(self._server, f"{host}:0", secured_by)
        except (InvalidConfig, RuntimeError) as error:
            log.warning("%s; the registry hears heartbeats through Serve alone", error)
            return
        await self._server.start()
        self.address = f"{host}:{port}"

    async def stop(self) -> None:
        """Safe to repeat, and where it was never started."""
        self.address = ""
        if self._server is not None:
            await self._server.stop(None)

    async def Beat(
        self,
        request: pb.BeatRequest,
        context: grpc.aio.ServicerContext[pb.BeatRequest, pb.BeatReply],
    ) -> pb.BeatReply:
        return pb.BeatReply(is_known=self._registry.beat(Epoch(request.epoch)))
