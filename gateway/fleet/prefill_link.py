"""The long-lived stream between this gateway and one prefill replica: how full it is, how fast, and
what it lends.

Prompts do not go this way: their decode replica brings them. While the stream is away the last word
is kept, and grows old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from baton.core.clock import Clock, monotonic
from baton.core.ids import Epoch
from baton.core.messages import Capacity, Demand, ReplicaInfo
from baton.gateway.fleet.demand import DemandNews
from baton.gateway.fleet.kept_stream import keep_open, pump_frames
from baton.gateway.fleet.last_word import LastWord
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.replica_pb2_grpc import PrefillStub
from baton.proto.wire import capacity_from_proto, demand_to_proto


class PrefillLink:
    """Its channel is its own: a long snapshot must not hold up what opens a place."""

    def __init__(
        self,
        info: ReplicaInfo,
        gateway_epoch: Epoch,
        on_change: Callable[[], None],
        channels: Channels,
        clock: Clock = monotonic,
    ) -> None:
        self.info = info
        self.is_connected = False
        self.last_word = LastWord(clock)
        self.demand = DemandNews(self._send)
        self._gateway_epoch = gateway_epoch
        self._on_change = on_change
        self._outgoing: asyncio.Queue[pb.GatewayFrame] = asyncio.Queue()
        self._channel = channels.new(info.address)
        self._pump = asyncio.create_task(
            keep_open(info.replica_id, self._pump_frames, self._break),
            name=f"link to {info.replica_id}",
        )

    @property
    def capacity(self) -> Capacity | None:
        return self.last_word.capacity

    async def close(self) -> None:
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        self.demand.close()
        await self._channel.close()

    async def _pump_frames(self) -> None:
        self._outgoing = asyncio.Queue()
        self.demand.restart()
        call = PrefillStub(self._channel).Session(wait_for_ready=False)
        hello = pb.Hello(gateway_epoch=self._gateway_epoch, replica_epoch=self.info.epoch)
        await pump_frames(call, hello, self._outgoing, self._receive)

    def _receive(self, message: pb.Capacity) -> None:
        capacity = self.last_word.hear(capacity_from_proto(message))
        self.is_connected = True
        self.demand.go_by(capacity.credit_id)
        self._on_change()

    def _send(self, demand: Demand) -> None:
        self._outgoing.put_nowait(pb.GatewayFrame(demand=demand_to_proto(demand)))

    def _break(self, reason: str) -> None:
        self.is_connected = False
        self._on_change()
