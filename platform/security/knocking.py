"""Which of several tokens a replica takes, found out before it is asked for anything.

An operator's tool that has found a token does not know whether replicas ask for one: it begins with
none (`settled` of `ray_token.py`), and shows its own to those that refuse it.
"""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio

from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.replica_pb2_grpc import ReplicaStub

SETTLING_S = 0.01
"""Within which a channel has learnt from a refusal."""


async def knock(channels: Channels, address: str, timeout_s: float) -> None:
    """From then on the channel shows what the replica takes. Raises grpc.aio.AioRpcError, also if
    it takes none of them."""
    for num_left in reversed(range(max(1, len(channels.security.tokens)))):
        try:
            stub = ReplicaStub(channels.to(address))
            await stub.Inspect(pb.InspectRequest(), timeout=timeout_s)
            return
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAUTHENTICATED or not num_left:
                raise
            await asyncio.sleep(SETTLING_S)
