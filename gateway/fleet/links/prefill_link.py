"""The gateway's link to one prefill replica: its load, speed and credits.

Prompts are not sent over it: their decode replica sends them. While the stream is away, the last
report is kept, with its age.
"""

from __future__ import annotations

from baton.gateway.fleet.links.replica_link import ReplicaLink
from baton.proto import replica_pb2 as pb
from baton.proto.replica_pb2_grpc import PrefillStub


class PrefillLink(ReplicaLink[pb.Capacity]):
    service = PrefillStub
    _was_connected = False

    @property
    def is_away(self) -> bool:
        """Whether it was connected before and is silent or disconnected now: requests must not wait
        for it."""
        return self._was_connected and not self.answers

    def await_prompts(self, num_open: int) -> None:
        """Set how many prompts are under way there."""
        self._pulse.watch(is_awaited=num_open > 0)

    def _receive(self, frame: pb.Capacity) -> None:
        self._was_connected = True
        self._receive_capacity(frame)
