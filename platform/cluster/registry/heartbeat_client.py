"""Unchanged heartbeats of a replica, sent to the registry's own port (`registry_port.py`).

    replica --- all of it, through Serve ---> registry
            <-- the address of its port -----  and how often it is to report
            --- Beat: still as I said ------> known: alive for another while
                                              not known, or no answer: all of it, through Serve
            === Stay ======================== held where beats are seldom. When it breaks, a beat is
                                              due at once, or the replica has ended

A call through Serve takes many times the CPU on both sides. If the port is not reachable, every
heartbeat goes through Serve.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc.aio

from baton.core.clock import Clock, monotonic
from baton.core.errors import InvalidConfig
from baton.core.replicas import HEARTBEAT_S, ReplicaInfo, ReportIntervals
from baton.platform.security.config import SecurityConfig
from baton.platform.security.connections import load_security
from baton.proto import replica_pb2 as pb
from baton.proto.channel_options import UNPINGED_CHANNEL_OPTIONS
from baton.proto.channels import Channels
from baton.proto.replica_pb2_grpc import RegistryStub

log = logging.getLogger(__name__)

ANSWER_S = 0.5
"""Timeout in seconds, the most by which a heartbeat is late if a firewall drops the call."""
FIRST_AVOIDED_S, AVOIDED_S = 2.0, 30.0
"""Seconds for which an unresponsive address is not tried again: after the first failure, and after
many; each failure doubles them. A registry that stood still for a moment would otherwise have all
its replicas call through Serve for long, and stand still again."""


class HeartbeatClient:
    """The replica's side. Belongs to an event loop; pickling keeps only its security."""

    def __init__(self, security: SecurityConfig, clock: Clock = monotonic) -> None:
        self._security = security
        self._clock = clock
        self._channel: grpc.aio.Channel | None = None
        self._told: ReplicaInfo | None = None
        self._num_tellings = self._telling = 0
        self._intervals = ReportIntervals()
        self._address = ""
        self._staying: asyncio.Task[None] | None = None
        self.is_cut = False
        """Whether the held call has ended since the last heartbeat, so that one is due at once."""
        self._avoided_until_s = self._told_at_s = float("-inf")
        self._avoid_next_s = FIRST_AVOIDED_S
        """Seconds for which the address will be avoided if it does not answer."""

    def __reduce__(self) -> tuple[Any, ...]:
        return HeartbeatClient, (self._security,)

    def next_telling(self) -> int:
        """The sequence number of the next report through Serve, where calls may overtake each
        other."""
        self._num_tellings += 1
        return self._num_tellings

    def has_told(
        self, info: ReplicaInfo, telling: int, address: str, intervals: ReportIntervals
    ) -> None:
        """The registry has the full report, and listens at `address`; empty: at no port."""
        if telling < self._telling:
            return  # a later report was answered earlier
        if address != self._address:
            self._avoided_until_s, self._avoid_next_s = float("-inf"), FIRST_AVOIDED_S
            self._channel = None
            self.hang_up()
        self._told, self._telling, self._told_at_s = info, telling, self._clock()
        self._address, self._intervals = address, intervals

    async def beat(self, info: ReplicaInfo) -> ReportIntervals | None:
        """The new intervals; None: a full report through Serve is due, also periodically, since
        Serve may have a new registry."""
        self.is_cut = False
        now = self._clock()
        if info != self._told or now - self._told_at_s >= self._intervals.whole_s:
            return None
        if not self._address or now < self._avoided_until_s:
            return None
        try:
            if self._channel is None:
                channels = Channels(load_security(self._security))
                self._channel = channels.new(self._address, UNPINGED_CHANNEL_OPTIONS)
            channel = self._channel
            beat = pb.BeatRequest(epoch=info.epoch, telling=self._telling)
            reply = await RegistryStub(channel).Beat(beat, timeout=ANSWER_S)
        except (grpc.aio.AioRpcError, InvalidConfig) as error:
            log.debug("heartbeats go through Serve: %r", error)
            self._avoided_until_s = self._clock() + self._avoid_next_s
            self._avoid_next_s = min(2 * self._avoid_next_s, AVOIDED_S)
            self._channel = None  # its connection may be dead without an error
            return None
        self._avoid_next_s = FIRST_AVOIDED_S
        if not reply.is_known:
            return None
        self._intervals = ReportIntervals(beat_s=reply.beat_s, whole_s=reply.whole_s)
        is_held = self._staying is not None and not self._staying.done()
        if self._intervals.beat_s > HEARTBEAT_S and not is_held:
            self._staying = asyncio.create_task(self._stay(channel, beat), name="stays")
        return self._intervals

    def hang_up(self) -> None:
        """Close the connection. Safe to repeat."""
        if self._staying is not None:
            self._staying.cancel()
            self._staying = None

    async def _stay(self, channel: grpc.aio.Channel, beat: pb.BeatRequest) -> None:
        try:
            await RegistryStub(channel).Stay(beat)
        except grpc.aio.AioRpcError as error:
            log.debug("the call to the registry's port has ended: %r", error)
        self.is_cut = True
