"""Calls to prefill replicas that are there before their prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc.aio
import pytest
from tests.gateway.fleet.known_replicas import make_replica
from tests.in_process_fleet import GREEDY, VOCAB_SIZE, Fleet, running_fleet, until_in_engine

from baton.core.errors import Unavailable
from baton.core.ids import ReplicaId, RequestId, TransferId
from baton.core.messages import PrefillDone, PrefillRequest
from baton.core.replicas import ReplicaAddress
from baton.decode_service.prefill_client import GrpcPrefillClient
from baton.engine.passes.echo import echo_output
from baton.prefill_service.worker import PrefillWorker
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.replica_pb2_grpc import PrefillServicer, add_PrefillServicer_to_server

PROMPT = list(range(3, 83))
P = make_replica("p")
Context = grpc.aio.ServicerContext[pb.PrefillRequest, pb.PrefillEvent]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.005)


class OlderReplica(PrefillServicer):
    """Knows no early calls. Draws 7."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def Prefill(
        self, request: pb.PrefillRequest, context: Context
    ) -> AsyncIterator[pb.PrefillEvent]:
        self.asked.append("Prefill")
        yield pb.PrefillEvent(done=pb.PrefillDone(token=7))

    async def AwaitPrompt(
        self, request_iterator: AsyncIterator[pb.PrefillRequest], context: Context
    ) -> AsyncIterator[pb.PrefillEvent]:
        self.asked.append("refused")
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "method not found")
        yield pb.PrefillEvent()

    Session = PrefillServicer.Session


class Replica(OlderReplica):
    def __init__(self) -> None:
        super().__init__()
        self.num_early = 0
        self.is_mute = False

    async def AwaitPrompt(
        self, request_iterator: AsyncIterator[pb.PrefillRequest], context: Context
    ) -> AsyncIterator[pb.PrefillEvent]:
        self.num_early += 1
        await anext(request_iterator)
        self.asked.append("AwaitPrompt")
        if self.is_mute:
            await asyncio.sleep(60)
        yield pb.PrefillEvent(done=pb.PrefillDone(token=7))


@asynccontextmanager
async def client_of(replica: PrefillServicer) -> AsyncIterator[Callable[[int], AsyncIterator[int]]]:
    """Asks it, with a time limit in ms; yields the first token."""
    server = grpc.aio.server()
    add_PrefillServicer_to_server(replica, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channels = Channels()
    client = GrpcPrefillClient(channels)
    peer = ReplicaAddress(replica_id=P.replica_id, epoch=P.epoch, address=f"127.0.0.1:{port}")

    async def ask(time_left_ms: int) -> AsyncIterator[int]:
        request = PrefillRequest(
            request_id=RequestId("r"),
            transfer_id=TransferId("t"),
            receiver_epoch=P.epoch,
            layout=P.layout,
            prompt=(1, 2, 3),
            time_left_ms=time_left_ms,
        )
        async for event in client.prefill(peer, request):
            assert isinstance(event, PrefillDone)
            yield event.token

    try:
        yield ask
    finally:
        client.close()
        await channels.close()
        await server.stop(None)


async def test_the_second_prompt_is_written_to_a_call_that_waits_for_it_and_has_a_time_limit() -> (
    None
):
    replica = Replica()
    async with client_of(replica) as ask:
        assert [token async for token in ask(20_000)] == [7]
        await until(lambda: replica.num_early == 1)
        assert [token async for token in ask(20_000)] == [7]
        await until(lambda: replica.num_early == 2)
        replica.is_mute = True
        with pytest.raises(Unavailable, match=r"prefill on p: not over within 0\.1 s"):
            [token async for token in ask(100)]

        assert replica.asked == ["Prefill", "AwaitPrompt", "AwaitPrompt"]


async def test_an_older_replica_is_asked_as_before_and_not_tried_with_each_prompt() -> None:
    replica = OlderReplica()
    async with client_of(replica) as ask:
        assert [token async for token in ask(20_000)] == [7]
        await until(lambda: "refused" in replica.asked)
        for _ in range(3):
            assert [token async for token in ask(20_000)] == [7]
            await asyncio.sleep(0.05)

        assert replica.asked == ["Prefill", "refused", "Prefill", "Prefill", "Prefill"]


def prefill_worker(fleet: Fleet) -> PrefillWorker:
    worker = fleet.replicas[ReplicaId("prefill-1")].worker
    assert isinstance(worker, PrefillWorker)
    return worker


async def test_a_prompt_that_came_by_an_early_call_is_let_go_when_the_call_is_cut() -> None:
    async with running_fleet() as fleet:
        early = prefill_worker(fleet).early_calls
        await fleet.ask(PROMPT)
        await until(lambda: len(early) == 1)
        with fleet.standing_still(ReplicaId("prefill-1")) as engine:
            asking = asyncio.create_task(fleet.ask(PROMPT[1:]))
            await until_in_engine(engine, 1)
            assert not len(early)
            asking.cancel()
            await until(lambda: not prefill_worker(fleet).num_requests)
        await fleet.assert_nothing_is_held()

        answer = await fleet.ask(PROMPT[2:])
        assert answer.tokens == echo_output(PROMPT[2:], GREEDY.max_tokens, VOCAB_SIZE)


async def test_a_prefill_replica_that_stops_lets_early_calls_go() -> None:
    async with running_fleet() as fleet:
        worker = prefill_worker(fleet)
        await fleet.ask(PROMPT)
        await until(lambda: len(worker.early_calls) == 1)
        stopping = asyncio.create_task(worker.stop())
        await until(lambda: not worker.early_calls)  # its server still runs
        await stopping
