"""The single calls to one replica, beside its streams: its accounts, and an operator's commands.

They share the channel of its link. All raise AioRpcError.
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc.aio

from baton.core.ids import Epoch
from baton.core.replicas import Role
from baton.proto import replica_pb2 as pb
from baton.proto.replica_pb2_grpc import ReplicaStub


@dataclass(frozen=True, slots=True)
class ReplicaCalls:
    channel: grpc.aio.Channel
    epoch: Epoch

    async def inspect(self, timeout_s: float, *, with_audit: bool = False) -> pb.InspectReply:
        request = pb.InspectRequest(without_audit=not with_audit)
        return await ReplicaStub(self.channel).Inspect(request, timeout=timeout_s)

    async def drain(self, timeout_s: float) -> int:
        """Drain the replica; return its open requests."""
        request = pb.DrainRequest(epoch=self.epoch)
        reply = await ReplicaStub(self.channel).Drain(request, timeout=timeout_s)
        return reply.num_open

    async def undrain(self, timeout_s: float) -> int:
        """Undo a drain; return its open requests."""
        request = pb.DrainRequest(epoch=self.epoch)
        reply = await ReplicaStub(self.channel).Undrain(request, timeout=timeout_s)
        return reply.num_open

    async def flip(self, role: Role, timeout_s: float) -> int:
        """Make the replica take a role; return the requests that have to leave first."""
        request = pb.FlipRequest(epoch=self.epoch, role=role)
        reply = await ReplicaStub(self.channel).Flip(request, timeout=timeout_s)
        return reply.num_open

    async def reset_prefix_cache(self, timeout_s: float) -> int:
        """Empty the replica's prefix cache; return the blocks dropped."""
        request = pb.ResetPrefixCacheRequest(epoch=self.epoch)
        reply = await ReplicaStub(self.channel).ResetPrefixCache(request, timeout=timeout_s)
        return reply.num_blocks
