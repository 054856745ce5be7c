"""A gateway that follows a prefix cache over a stream that breaks, skips and repeats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from tests.gateway.fleet.known_replicas import make_replica
from tests.gateway.fleet.scripted_replica import until
from tests.partial_replica import PartialReplica
from tests.router.test_kv_index import chain, events, evicted, snapshot, stored

from baton.core.kv_events import KvEvents
from baton.gateway.fleet.links import kv_watch
from baton.gateway.fleet.links.kv_watch import KvWatch
from baton.gateway.fleet.links.replica_calls import ReplicaCalls
from baton.proto import replica_pb2 as pb
from baton.proto.channel_options import SERVER_OPTIONS
from baton.proto.channels import Channels
from baton.proto.kv_events_wire import kv_events_from_proto, kv_events_to_proto
from baton.proto.replica_pb2_grpc import add_ReplicaServicer_to_server
from baton.router.cache.kv_index import KvIndex

D = make_replica("d")
Said = KvEvents | pb.KvEvents | grpc.StatusCode
Stream = Sequence[Said]


class ScriptedCache(PartialReplica):
    """The n-th watch gets the n-th stream. A status ends it; else it stays open until `say`."""

    def __init__(self, *streams: Stream) -> None:
        self.watched: list[str] = []
        self._streams = list(streams)
        self._outgoing: asyncio.Queue[Said] = asyncio.Queue()

    def say(self, message: Said) -> None:
        self._outgoing.put_nowait(message)

    async def Inspect(
        self,
        request: pb.InspectRequest,
        context: grpc.aio.ServicerContext[pb.InspectRequest, pb.InspectReply],
    ) -> pb.InspectReply:
        return pb.InspectReply(replica_id=D.replica_id)

    async def WatchKv(
        self,
        request: pb.WatchKvRequest,
        context: grpc.aio.ServicerContext[pb.WatchKvRequest, pb.KvEvents],
    ) -> AsyncIterator[pb.KvEvents]:
        self._outgoing = asyncio.Queue()
        for message in self._streams[len(self.watched)]:
            self.say(message)
        self.watched.append(request.epoch)
        while not isinstance(message := await self._outgoing.get(), grpc.StatusCode):
            yield kv_events_to_proto(message) if isinstance(message, KvEvents) else message
        if message is not grpc.StatusCode.OK:
            await context.abort(message, "as the script says")


def wait_for(connected: asyncio.Event) -> Callable[[], Awaitable[None]]:
    async def until_connected() -> None:
        await connected.wait()

    return until_connected


@asynccontextmanager
async def watching(
    cache: ScriptedCache, index: KvIndex, connected: asyncio.Event | None = None
) -> AsyncIterator[KvWatch]:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_ReplicaServicer_to_server(cache, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = Channels().new(f"127.0.0.1:{port}")
    until_connected = channel.channel_ready if connected is None else wait_for(connected)
    watch = KvWatch(D, index, channel, lambda _: None, until_connected)
    try:
        yield watch
    finally:
        await watch.close()
        await channel.close()
        await server.stop(None)


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_watch, "MIN_RETRY_S", 0.001)
    monkeypatch.setattr(kv_watch, "MAX_RETRY_S", 0.004)


def cached(index: KvIndex, text: str) -> int:
    return index.num_cached_blocks(chain(text)).get(D.epoch, 0)


async def test_the_index_follows_what_the_replica_says() -> None:
    index = KvIndex()
    cache = ScriptedCache([snapshot(*chain("abc"), first_sequence=5)])
    async with watching(cache, index) as watch:
        await until(lambda: cached(index, "abc") == 3)

        cache.say(events(5, stored(*chain("abcd")[3:])))
        await until(lambda: cached(index, "abcd") == 4)
        cache.say(events(6, evicted(*chain("abcd")[2:])))
        await until(lambda: cached(index, "abcd") == 2)

        assert cache.watched == [D.epoch]
        assert (watch.num_events, watch.num_gaps, watch.num_resyncs) == (2, 0, 0)
        assert watch.is_synced


async def test_a_cache_is_asked_for_once_its_replica_has_answered() -> None:
    index, connected = KvIndex(), asyncio.Event()
    cache = ScriptedCache([snapshot(*chain("abc"))])
    async with watching(cache, index, connected) as watch:
        calls = ReplicaCalls(watch._channel, D.epoch)
        await calls.inspect(10.0)  # the channel is there, and would carry it
        assert not cache.watched

        connected.set()

        await until(lambda: cached(index, "abc") == 3)


async def test_after_a_gap_it_asks_for_a_snapshot() -> None:
    index = KvIndex()
    cache = ScriptedCache(
        [snapshot(*chain("old")), events(3, stored(*chain("x")))],
        [snapshot(*chain("new"), first_sequence=4)],
    )
    async with watching(cache, index) as watch:
        await until(lambda: cached(index, "new") == 3)

        assert cached(index, "old") == 0
        assert (watch.num_gaps, watch.num_resyncs, watch.is_synced) == (1, 1, True)


async def test_a_snapshot_in_the_middle_of_a_stream_replaces_what_was_known() -> None:
    index = KvIndex()
    cache = ScriptedCache(
        [
            snapshot(*chain("old")),
            snapshot(*chain("new"), first_sequence=9),
            events(9, stored(*chain("newer")[3:])),
        ]
    )
    async with watching(cache, index) as watch:
        await until(lambda: cached(index, "newer") == 5)

        assert cached(index, "old") == 0
        assert (watch.num_gaps, watch.num_resyncs) == (0, 1)
        assert len(cache.watched) == 1


@pytest.mark.parametrize("status", [grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE])
async def test_what_was_known_holds_until_a_broken_stream_is_back(status: grpc.StatusCode) -> None:
    index = KvIndex()
    cache = ScriptedCache([snapshot(*chain("abc"))], [])
    async with watching(cache, index) as watch:
        await until(lambda: watch.is_synced)
        cache.say(status)
        await until(lambda: len(cache.watched) == 2)
        assert cached(index, "abc") == 3
        assert not watch.is_synced

        cache.say(snapshot(*chain("abcd"), first_sequence=4))

        await until(lambda: cached(index, "abcd") == 4)
        assert (watch.num_gaps, watch.num_resyncs) == (0, 1)


async def test_a_replica_that_refuses_is_asked_again_and_again() -> None:
    refusal = [grpc.StatusCode.FAILED_PRECONDITION]
    index = KvIndex()
    cache = ScriptedCache(refusal, refusal, refusal, [snapshot(*chain("a"))])
    async with watching(cache, index):
        await until(lambda: cached(index, "a") == 1)

        assert len(cache.watched) == 4


async def test_nonsense_is_no_reason_to_stop_watching(caplog: pytest.LogCaptureFixture) -> None:
    half_a_name = pb.KvEvents(first_sequence=1, events=[pb.KvEvent(stored=b"short")])
    index = KvIndex()
    async with watching(ScriptedCache([half_a_name], [snapshot(*chain("a"))]), index):
        await until(lambda: cached(index, "a") == 1)

    assert "cannot be followed" in caplog.text


async def test_closing_stops_a_watch_whatever_it_is_doing() -> None:
    waiting, retrying = ScriptedCache([]), ScriptedCache(*[[grpc.StatusCode.UNAVAILABLE]] * 100)
    for cache in (waiting, retrying):
        async with watching(cache, KvIndex()) as watch:
            while not cache.watched:
                await asyncio.sleep(0.001)

            await watch.close()


@pytest.mark.parametrize(
    "message",
    [
        snapshot(*chain("ab"), first_sequence=3),
        snapshot(),
        snapshot(*chain("a"), part=3, has_more=True),
        events(1),
        events(7, stored(*chain("ab")), evicted(*chain("c")), stored()),
    ],
)
def test_events_come_over_the_wire_as_they_were(message: KvEvents) -> None:
    wire = kv_events_to_proto(message).SerializeToString()

    assert kv_events_from_proto(pb.KvEvents.FromString(wire)) == message


def test_a_change_that_a_newer_replica_knows_is_refused_not_passed_over() -> None:
    with pytest.raises(ValueError, match="not known here"):
        kv_events_from_proto(pb.KvEvents(first_sequence=1, events=[pb.KvEvent()]))
