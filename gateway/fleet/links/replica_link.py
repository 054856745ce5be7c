"""The one long-lived stream between this gateway and a replica, of either role.

    connect, greet --> the replica's first word: connected --> frames, demand, credits
         ^                                                         |
         '--------------- a little later --------- broken <--------'

A replica from which something is awaited is probed (`proto/pulse.py`). One that does not answer is
*silent*, although its stream is open, until it sends again. `DecodeLink` and `PrefillLink` handle
the frames of their role, and its silence.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import grpc.aio

from baton.core.clock import Clock, monotonic
from baton.core.ids import Epoch, ReplicaId
from baton.core.replicas import Capacity, Demand, ReplicaInfo
from baton.gateway.fleet.links.demand import DemandReporter
from baton.gateway.fleet.links.kept_stream import keep_open, pump_frames
from baton.gateway.fleet.links.opening_slots import OpeningSlot, OpeningSlots
from baton.proto import replica_pb2 as pb
from baton.proto.capacity_wire import capacity_from_proto, demand_to_proto
from baton.proto.channel_options import LINK_CHANNEL_OPTIONS
from baton.proto.channels import Channels
from baton.proto.one_call import one_call
from baton.proto.pulse import Pulse

log = logging.getLogger(__name__)


class CapacityReport:
    """A replica's last capacity report, and its age."""

    def __init__(self, replica_id: ReplicaId, clock: Clock) -> None:
        self._replica_id = replica_id
        self._has_warned = False
        self.capacity: Capacity | None = None
        self._clock = clock
        self.received_at_s: float | None = None
        """When it was received, by the clock; None before the first."""
        self.timed_at_s: float | None = None
        """When it last reported new step times."""
        self._of_rest: pb.Capacity | None = None
        """Its last report, if that was of an idle replica."""

    def repeats(self, message: pb.Capacity) -> bool:
        """Whether an idle replica repeats its last report with a new time only; if so, it is taken
        in. Most reports of a large fleet do, at a tenth of the cost of a full one.
        """
        before = self._of_rest
        if before is None:
            return False
        if before.HasField("step_times") and message.HasField("step_times"):
            before.step_times.age_s = message.step_times.age_s  # which grows by itself
        if message != before:
            return False
        self.received_at_s = self._clock()
        return True

    def observe(self, message: pb.Capacity) -> Capacity:
        """Take in a full report; step times are not in every one. An impossible value is replaced
        by the previous one, since predictions depend on it.
        """
        capacity = capacity_from_proto(message)
        self._of_rest = message if capacity.is_at_rest else None
        self.received_at_s = self._clock()
        if not capacity.is_sound:
            self.doubt(capacity)
            slowness = 1.0 if self.capacity is None else self.capacity.slowness
            capacity = replace(capacity, step_times=None, slowness=slowness)
        if capacity.step_times is not None:
            self.timed_at_s = self.received_at_s
        elif self.capacity is not None:
            capacity = replace(capacity, step_times=self.capacity.step_times)
        self.capacity = capacity
        return capacity

    def forget(self) -> None:
        self.capacity = self._of_rest = None
        self.received_at_s = self.timed_at_s = None

    def doubt(self, capacity: Capacity) -> None:
        """Log an impossible report, once: it is repeated each second."""
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s reports an impossible speed (%s, slowness %s); its previous report holds",
                self._replica_id,
                capacity.step_times,
                capacity.slowness,
            )


F = TypeVar("F")
"""What the replica sends."""


class Listener(NamedTuple):
    """Callbacks for changes of a replica."""

    on_change: Callable[[], None]
    """Called when the replica, or the stream to it, has changed."""
    on_repeat: Callable[[], None]
    """Called when an idle replica repeats its report."""


class ReplicaLink(ABC, Generic[F]):
    """The channel is the gateway's only connection to the replica, since each is pinged every
    second. Cache events share it, in parts that tokens can pass between.
    """

    service: ClassVar[type[Any]]
    """The stub of the role's service, whose `Session` is the stream."""

    def __init__(
        self,
        info: ReplicaInfo,
        gateway_epoch: Epoch,
        listener: Listener,
        channels: Channels,
        clock: Clock = monotonic,
        opening: OpeningSlots | None = None,
    ) -> None:
        self.info = info
        self._is_connected = asyncio.Event()
        self._opening = opening or OpeningSlots()
        self._turn: OpeningSlot | None = None
        """The turn to connect."""
        self.capacity_report = CapacityReport(info.replica_id, clock)
        self.demand = DemandReporter(self._send_demand)
        self._on_change, self._on_repeat = listener
        self._hello = pb.Hello(gateway_epoch=gateway_epoch, replica_epoch=info.epoch)
        self._outgoing: asyncio.Queue[pb.GatewayFrame] = asyncio.Queue()
        self.channel = channels.new(info.address, LINK_CHANNEL_OPTIONS)
        self._pulse = Pulse(self.channel, channels.ping_timing, self._on_pulse, clock)
        self._pump = asyncio.create_task(
            keep_open(
                info.replica_id,
                self._pump_frames,
                self._is_connected.is_set,
                self._break,
                is_secured=channels.is_secured,
            ),
            name=f"link to {info.replica_id}",
        )

    @property
    def is_connected(self) -> bool:
        """Whether the stream is open and the replica has answered our Hello."""
        return self._is_connected.is_set()

    async def until_connected(self) -> None:
        await self._is_connected.wait()

    @property
    def capacity(self) -> Capacity | None:
        """The last capacity report."""
        return self.capacity_report.capacity

    @property
    def is_draining(self) -> bool:
        return self.capacity is not None and self.capacity.is_draining

    @property
    def is_silent(self) -> bool:
        """Whether something is awaited from it and it does not answer."""
        return self._pulse.is_silent

    @property
    def answers(self) -> bool:
        return self.is_connected and not self.is_silent

    def has_spoken(self, since_s: float) -> bool:
        """Whether it is connected and has sent something since `since_s`."""
        received_at_s = self.capacity_report.received_at_s
        return self.answers and received_at_s is not None and received_at_s >= since_s

    async def close(self) -> None:
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        self.demand.close()
        self._pulse.close()
        self._break("the replica has left")
        await self.channel.close()

    @abstractmethod
    def _receive(self, frame: F) -> None: ...

    def _on_pulse(self) -> None:
        """Handle that it fell silent, or sent again."""
        self._on_change()

    async def _pump_frames(self) -> None:
        self._outgoing = asyncio.Queue()
        self.demand.restart()
        self._turn = turn = await self._opening.turn()
        try:
            call: grpc.aio.StreamStreamCall[pb.GatewayFrame, F]
            call = one_call(self.service, "Session", self.channel)(wait_for_ready=False)
            await pump_frames(call, self._hello, self._outgoing, self._receive_frame)
        finally:
            turn.end()

    def _receive_frame(self, frame: F) -> None:
        self._pulse.received()
        self._receive(frame)

    def _receive_capacity(self, message: pb.Capacity) -> None:
        if self.is_connected and self.capacity_report.repeats(message):
            self._on_repeat()
        else:
            self._receive_change(message)
            self._on_change()

    def _receive_change(self, message: pb.Capacity) -> None:
        capacity = self.capacity_report.observe(message)
        self._is_connected.set()  # the first frame answers our Hello
        if self._turn is not None:
            self._turn.end()
            self._turn = None
        self.demand.go_by(capacity.credit_id)

    def _send_demand(self, demand: Demand) -> None:
        self._outgoing.put_nowait(pb.GatewayFrame(demand=demand_to_proto(demand)))

    def _break(self, reason: str) -> None:
        """The stream is over."""
        self._is_connected.clear()
        self._on_change()
