"""Many replicas that compute nothing, in one process, on one port; they differ by their epochs.

    python -m bench.fake_replicas NUMBER      the port comes by stdout

Each says each second how full it is, tells of a cache of 1,000 blocks, and each second of 8 more.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import grpc
import grpc.aio
from tests.partial_replica import PartialReplica

from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.core.replicas import HEARTBEAT_S, Capacity
from baton.proto import replica_pb2 as pb
from baton.proto.channels import listen, new_server
from baton.proto.kv_events_wire import kv_events_to_proto
from baton.proto.replica_pb2_grpc import (
    DecodeServicer,
    PrefillServicer,
    add_DecodeServicer_to_server,
    add_PrefillServicer_to_server,
    add_ReplicaServicer_to_server,
)
from baton.proto.wire import capacity_to_proto

NUM_BLOCKS, NUM_NEW = 1000, 8
NAME_BYTES = 16


def capacity(number: int) -> pb.Capacity:
    """Never the same twice, as of a replica at work."""
    told = Capacity(
        max_open=64,
        num_running=number % 32,
        num_blocks=NUM_BLOCKS,
        num_free_blocks=number % NUM_BLOCKS,
        credit_tokens=8192,
        credit_id=1,
    )
    return capacity_to_proto(told)


async def beats(draw: Random) -> AsyncIterator[int]:
    """Gateways do not hear of all replicas in the same moment."""
    yield 0
    await asyncio.sleep(draw.random() * HEARTBEAT_S)
    number = 0
    while True:
        number += 1
        yield number
        await asyncio.sleep(HEARTBEAT_S)


class FakeDecode(DecodeServicer):
    async def TakeStream(
        self, request: pb.TakeStreamRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ParkedStream:
        await context.abort(grpc.StatusCode.NOT_FOUND, "nothing is remembered here")

    async def Session(
        self, request_iterator: AsyncIterator[pb.GatewayFrame], context: Any
    ) -> AsyncIterator[pb.DecodeFrame]:
        async for number in beats(Random()):
            yield pb.DecodeFrame(capacity=capacity(number))


class FakePrefill(PrefillServicer):
    Prefill = PrefillServicer.Prefill

    async def Session(
        self, request_iterator: AsyncIterator[pb.GatewayFrame], context: Any
    ) -> AsyncIterator[pb.Capacity]:
        async for number in beats(Random()):
            yield capacity(number)


class FakeCaches(PartialReplica):
    async def Ping(self, request: pb.PingRequest, context: Any) -> pb.PingReply:
        return pb.PingReply()

    async def WatchKv(self, request: pb.WatchKvRequest, context: Any) -> AsyncIterator[pb.KvEvents]:
        draw = Random(request.epoch)
        async for number in beats(draw):
            names = draw.randbytes((NUM_NEW if number else NUM_BLOCKS) * NAME_BYTES)
            events = KvEvents(
                first_sequence=number or 1,
                events=(KvEvent(KvChange.STORED, names),),
                is_snapshot=not number,
            )
            yield kv_events_to_proto(events)


async def serve() -> None:
    server = new_server()
    add_DecodeServicer_to_server(FakeDecode(), server)
    add_PrefillServicer_to_server(FakePrefill(), server)
    add_ReplicaServicer_to_server(FakeCaches(), server)
    port = listen(server, "127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(serve())
