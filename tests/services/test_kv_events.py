"""What replicas tell of their prefix caches over gRPC. Real replicas with echo engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from tests.gateway.fleet.scripted_replica import snapshot, until
from tests.in_process_fleet import Fleet, running_fleet

from baton.core.block_hash import block_hashes, root_hash
from baton.core.ids import Epoch, ReplicaId
from baton.core.metrics import exposition
from baton.core.replicas import Membership, ReplicaInfo
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.gateway.fleet.links.kv_watch import KvWatch
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.kv_events_wire import kv_events_from_proto
from baton.proto.replica_pb2_grpc import ReplicaStub
from baton.router.cache.kv_index import KvIndex
from baton.router.cache.prompt_names import PromptNames
from baton.router.placer import Routing
from baton.router.policies.cost import Cost

PROMPT = list(range(3, 43))
P, D = ReplicaId("prefill-1"), ReplicaId("decode-2")


def info(fleet: Fleet, replica_id: ReplicaId) -> ReplicaInfo:
    return fleet.replicas[replica_id].info


@asynccontextmanager
async def watching(info: ReplicaInfo, index: KvIndex) -> AsyncIterator[KvWatch]:
    channel = Channels().new(info.address)
    watch = KvWatch(info, index, channel, lambda _: None, channel.channel_ready)
    try:
        yield watch
    finally:
        await watch.close()


def names(fleet: Fleet, tokens: list[int]) -> list[bytes]:
    layout = info(fleet, D).layout
    return list(block_hashes(root_hash(layout.model_fingerprint), tokens, layout.block_size))


async def test_both_sides_of_a_handoff_say_that_they_have_the_prompt() -> None:
    async with running_fleet() as fleet:
        index = fleet.dispatcher.fleet.index
        both = {info(fleet, P).epoch: 10, info(fleet, D).epoch: 10}

        answer = await fleet.ask(PROMPT)

        assert answer.receipt.prefill_replica == P
        await until(lambda: index.num_cached_blocks(names(fleet, PROMPT)) == both)
        # The last token's KV is never computed: nothing follows it.
        whole = names(fleet, [*PROMPT, *answer.tokens[:-1]])
        epoch = info(fleet, D).epoch
        assert len(whole) > 10
        await until(lambda: index.num_cached_blocks(whole).get(epoch) == len(whole))
        known, engine = fleet.dispatcher.fleet.links.kv_knowledge(), fleet.engines[D]
        assert known[info(fleet, D).epoch].num_blocks == len(list(engine.pool.prefixes.names()))


async def test_a_watcher_that_comes_late_gets_all_there_is() -> None:
    async with running_fleet() as fleet:
        await fleet.ask(PROMPT)
        index = KvIndex()

        async with watching(info(fleet, P), index) as watch:
            await until(lambda: watch.is_synced)

            counts = index.num_cached_blocks(names(fleet, PROMPT))
            assert counts == {info(fleet, P).epoch: 10}
            assert watch.num_events == 0


@pytest.mark.parametrize("replica_id", [P, D])
async def test_another_incarnation_is_refused(replica_id: ReplicaId) -> None:
    async with running_fleet() as fleet:
        address = info(fleet, replica_id).address
        async with grpc.aio.insecure_channel(address) as channel:
            call = ReplicaStub(channel).WatchKv(pb.WatchKvRequest(epoch=Epoch("an older one")))

            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await anext(aiter(call))

        assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_numbers_have_no_gaps_from_one_message_to_the_next() -> None:
    async with running_fleet(prefill=0) as fleet:
        [only] = fleet.replicas.values()
        async with grpc.aio.insecure_channel(only.info.address) as channel:
            call = ReplicaStub(channel).WatchKv(pb.WatchKvRequest(epoch=only.info.epoch))
            messages = aiter(call)
            first = kv_events_from_proto(await anext(messages))
            for start in range(3):
                await fleet.ask([start, *PROMPT])
            sequence, num_stored = first.next_sequence, 0
            while num_stored < 3 * 10:
                events = kv_events_from_proto(await anext(messages))
                assert events.first_sequence == sequence
                sequence = events.next_sequence
                num_stored += sum(len(event.names) // 16 for event in events.events)

        assert first.is_snapshot
        assert first.first_sequence == 1


async def test_a_replica_that_came_back_elsewhere_is_followed_anew() -> None:
    async with running_fleet(prefill=0) as fleet:
        first = info(fleet, ReplicaId("decode-1"))
        await fleet.ask(PROMPT)
        await fleet.crash(first.replica_id)
        again = await fleet.add(first.role)
        index = fleet.dispatcher.fleet.index

        await fleet.ask(PROMPT)

        new = info(fleet, again)
        await until(
            lambda: (
                index.num_blocks(new.epoch) == len(list(fleet.engines[again].pool.prefixes.names()))
            )
        )
        known = fleet.dispatcher.fleet.links.kv_knowledge()
        assert known[new.epoch].is_synced

        def is_followed() -> bool:
            known = fleet.dispatcher.fleet.links.kv_knowledge()
            return first.epoch in known and known[first.epoch].is_synced

        await until(lambda: not is_followed())


class LostRegistry:
    """Tells once who is there; then its node is gone."""

    def __init__(self, membership: Membership) -> None:
        self._membership: Membership | None = membership

    async def watch(self, incarnation: Epoch | None, version: int) -> Membership:
        if self._membership is None:
            raise ConnectionError("the head is away")
        membership, self._membership = self._membership, None
        return membership


async def test_caches_are_followed_while_the_registry_is_away() -> None:
    async with running_fleet(prefill=0) as fleet:
        dispatcher = ReplicaDispatcher(Routing(Cost()), max_waiting=1, no_replica_grace_s=5.0)
        registry = LostRegistry(snapshot(*(one.info for one in fleet.replicas.values())))
        running = asyncio.create_task(dispatcher.run(registry))
        await until(dispatcher.is_ready)

        await fleet.ask(PROMPT)  # through the other gateway

        index = dispatcher.fleet.index
        [known] = dispatcher.fleet.replicas
        hashes = PromptNames(PROMPT).under(known.layout)
        await until(lambda: list(index.num_cached_blocks(hashes).values()) == [10])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_operators_see_what_the_gateway_knows() -> None:
    async with running_fleet() as fleet:
        await fleet.ask(PROMPT)
        index = fleet.dispatcher.fleet.index
        await until(lambda: len(index.num_cached_blocks(names(fleet, PROMPT))) == 2)

        status, text = await fleet.dispatcher.status(), exposition(fleet.dispatcher.metrics())

        [prefill] = status["pools"]["prefill"]
        assert prefill["kv_index"]["num_blocks"] == 10
        assert prefill["kv_index"]["is_synced"]
        assert 'baton_gateway_kv_index_blocks{replica="prefill-1"} 10.0\n' in text


async def test_nobody_waits_for_a_watcher_when_a_replica_stops() -> None:
    async with running_fleet(prefill=0) as fleet:
        replica = fleet.replicas.pop(ReplicaId("decode-1"))
        feed = replica.worker.core.kv_feed.watch()
        await anext(feed)

        await replica.stop()

        with pytest.raises(StopAsyncIteration):
            await anext(feed)
