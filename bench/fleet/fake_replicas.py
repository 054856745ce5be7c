"""Many replicas that compute nothing, in one process and on one port, told apart by their epochs.

    python -m bench.fleet.fake_replicas NUM_BLOCKS [--busy]     prints the port

Each reports its load as real replicas do (`CapacityReporter`), and a prefix cache of NUM_BLOCKS
blocks. A busy one reports a new load and 8 more blocks each second. For each line of stdin the
server is closed, with all its streams, and another one listens on the same port.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import grpc
import grpc.aio
from tests.partial_replica import PartialReplica

from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.core.replicas import Capacity
from baton.core.step_times import StepTimes
from baton.proto import replica_pb2 as pb
from baton.proto.capacity_wire import capacity_to_proto
from baton.proto.channels import listen, new_server
from baton.proto.kv_events_wire import kv_events_to_proto
from baton.proto.replica_pb2_grpc import (
    DecodeServicer,
    PrefillServicer,
    add_DecodeServicer_to_server,
    add_PrefillServicer_to_server,
    add_ReplicaServicer_to_server,
)
from baton.replica_core.capacity_reporter import CapacityReporter
from bench.harness.command_line import benchmark_parser

NUM_NEW = 8
NEWS_S = 1.0
NAME_BYTES = 16
PART_BLOCKS = 4096
"""As in `engine/kv_feed.py`, which would import torch."""
STEPS = StepTimes(constant_s=0.01, token_s=1e-4, pair_s=1e-9, num_prompt_steps=99)


def capacity(number: int, num_blocks: int) -> Capacity:
    """A capacity that changes with each call, as that of a busy replica."""
    return Capacity(
        max_open=64,
        num_running=number % 32,
        num_blocks=num_blocks,
        num_free_blocks=number % max(num_blocks, 1),
        credit_tokens=8192,
        credit_id=1,
    )


class Fakes:
    def __init__(self, num_blocks: int, *, is_busy: bool) -> None:
        self.num_blocks = num_blocks
        self.is_busy = is_busy

    async def capacities(self) -> AsyncIterator[pb.Capacity]:
        """The capacity reports of one replica to one gateway."""
        due = asyncio.Event()
        news = CapacityReporter(due.set, lambda: STEPS)
        busy = asyncio.create_task(self._work(news))
        try:
            while True:
                said = news.take()
                if said is None:
                    await due.wait()
                    due.clear()
                else:
                    yield capacity_to_proto(said)
        finally:
            busy.cancel()
            news.close()

    async def _work(self, news: CapacityReporter) -> None:
        """Let the replicas report, spread over the second."""
        number, draw = 0, Random()
        news.put(capacity(number, self.num_blocks))
        await asyncio.sleep(draw.random() * NEWS_S)
        while self.is_busy:
            number += 1
            news.put(capacity(number, self.num_blocks))
            await asyncio.sleep(NEWS_S)

    async def caches(self, epoch: str) -> AsyncIterator[KvEvents]:
        draw, num_blocks = Random(epoch), self.num_blocks
        for part, start in enumerate(range(0, max(num_blocks, 1), PART_BLOCKS)):
            names = draw.randbytes(min(PART_BLOCKS, num_blocks - start) * NAME_BYTES)
            yield KvEvents(
                first_sequence=1,
                events=(KvEvent(KvChange.STORED, names),),
                is_snapshot=True,
                part=part,
                has_more=start + PART_BLOCKS < num_blocks,
            )
        number = 0
        while True:
            await asyncio.sleep(NEWS_S)
            if self.is_busy:
                number += 1
                names = draw.randbytes(NUM_NEW * NAME_BYTES)
                yield KvEvents(first_sequence=number, events=(KvEvent(KvChange.STORED, names),))


class FakeDecode(DecodeServicer):
    def __init__(self, fakes: Fakes) -> None:
        self._fakes = fakes

    async def TakeStream(
        self, request: pb.TakeStreamRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ParkedStream:
        await context.abort(grpc.StatusCode.NOT_FOUND, "nothing is remembered here")

    async def Session(
        self, request_iterator: AsyncIterator[pb.GatewayFrame], context: Any
    ) -> AsyncIterator[pb.DecodeFrame]:
        async for said in self._fakes.capacities():
            yield pb.DecodeFrame(capacity=said)


class FakePrefill(PrefillServicer):
    Prefill = PrefillServicer.Prefill

    def __init__(self, fakes: Fakes) -> None:
        self._fakes = fakes

    async def Session(
        self, request_iterator: AsyncIterator[pb.GatewayFrame], context: Any
    ) -> AsyncIterator[pb.Capacity]:
        async for said in self._fakes.capacities():
            yield said


class FakeCaches(PartialReplica):
    def __init__(self, fakes: Fakes) -> None:
        self._fakes = fakes

    async def Ping(self, request: pb.PingRequest, context: Any) -> pb.PingReply:
        return pb.PingReply()

    async def WatchKv(self, request: pb.WatchKvRequest, context: Any) -> AsyncIterator[pb.KvEvents]:
        async for events in self._fakes.caches(request.epoch):
            yield kv_events_to_proto(events)


@asynccontextmanager
async def serving(fakes: Fakes, port: int = 0) -> AsyncIterator[int]:
    server = new_server()
    add_DecodeServicer_to_server(FakeDecode(fakes), server)
    add_PrefillServicer_to_server(FakePrefill(fakes), server)
    add_ReplicaServicer_to_server(FakeCaches(fakes), server)
    bound = listen(server, f"127.0.0.1:{port}")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(None)


async def serve(fakes: Fakes) -> None:
    port = 0
    while True:
        async with serving(fakes, port) as port:
            print(port, flush=True)
            if not await asyncio.to_thread(sys.stdin.readline):
                return


if __name__ == "__main__":
    parser = benchmark_parser(__doc__)
    parser.add_argument("num_blocks", type=int)
    parser.add_argument("--busy", action="store_true")
    given = parser.parse_args()
    asyncio.run(serve(Fakes(given.num_blocks, is_busy=given.busy)))
