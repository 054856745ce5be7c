"""The gateway's link to one prefill replica: how full it is, how fast, and its credits.

Prompts do not go this way: their decode replica sends them. While the stream is away the last
report is kept, and grows old.
"""

from __future__ import annotations

import grpc.aio

from baton.gateway.fleet.replica_link import ReplicaLink
from baton.proto import replica_pb2 as pb
from baton.proto.one_call import one_call
from baton.proto.replica_pb2_grpc import PrefillStub


class PrefillLink(ReplicaLink[pb.Capacity]):
    _was_connected = False

    @property
    def is_away(self) -> bool:
        """It was there, and is silent now, or its stream is broken: nobody is to wait for it."""
        return self._was_connected and not self.answers

    def await_prompts(self, num_open: int) -> None:
        """So many prompts are under way there by now."""
        self._pulse.watch(is_awaited=num_open > 0)

    def _call(
        self, channel: grpc.aio.Channel
    ) -> grpc.aio.StreamStreamCall[pb.GatewayFrame, pb.Capacity]:
        call: grpc.aio.StreamStreamCall[pb.GatewayFrame, pb.Capacity]
        call = one_call(PrefillStub, "Session", channel)(wait_for_ready=False)
        return call

    def _receive(self, frame: pb.Capacity) -> None:
        self._was_connected = True
        self._hear_capacity(frame)
