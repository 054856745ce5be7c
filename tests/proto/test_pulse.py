"""Who waits for a peer asks it whether it answers; who does not, asks nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.gateway.fleet.known_replicas import make_replica
from tests.gateway.fleet.scripted_replica import IMPATIENT, ScriptedReplica, until
from tests.partial_replica import PartialReplica

from baton.core.errors import BatonError, Unavailable
from baton.core.ids import RequestId, TransferId
from baton.core.messages import PrefillRequest
from baton.core.replicas import ReplicaAddress
from baton.decode_service.prefill_client import GrpcPrefillClient
from baton.kv_transfer.handoff.messages import OpenTransfer
from baton.kv_transfer.pulling.peer import PeerClient
from baton.kv_transfer.receiving.source_patience import SourcePatience
from baton.kv_transfer.receiving.source_watch import SourceWatch
from baton.kv_transfer.transport.control.client import ControlClient
from baton.proto import kv_pb2
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.kv_pb2_grpc import KvTransferServicer, add_KvTransferServicer_to_server
from baton.proto.pulse import PingTiming, Pulse
from baton.proto.relayed_channel import RelayedChannel
from baton.proto.replica_pb2_grpc import (
    PeerServicer,
    PrefillServicer,
    add_PeerServicer_to_server,
    add_PrefillServicer_to_server,
    add_ReplicaServicer_to_server,
)


@asynccontextmanager
async def pulse_of(replica: ScriptedReplica) -> AsyncIterator[Pulse]:
    channels = Channels(ping_timing=IMPATIENT)
    await replica.start()
    try:
        yield channels.pulse(replica.info.address)
    finally:
        await channels.close()
        await replica.stop()


async def falls_silent(pulse: Pulse) -> None:
    with pytest.raises(Unavailable, match="one answers nobody"):
        async with pulse.answers("one"):
            await asyncio.sleep(60)
    assert pulse.is_silent


async def test_who_waits_for_a_peer_that_stands_still_hears_that_it_answers_nobody() -> None:
    replica = ScriptedReplica("one")
    async with pulse_of(replica) as pulse:
        async with pulse.answers("one"):
            await asyncio.sleep(3 * IMPATIENT.ask_after_s)
        replica.may_proceed.clear()

        await falls_silent(pulse)

        with pytest.raises(Unavailable, match="one answers nobody"):
            async with pulse.answers("one"):
                raise AssertionError("nobody begins to wait for it")
        replica.may_proceed.set()
        await until(lambda: not pulse.is_silent)
        async with pulse.answers("one"):
            await asyncio.sleep(3 * IMPATIENT.ask_after_s)


async def test_a_peer_that_answered_late_is_not_silent_when_it_is_as_late_again() -> None:
    replica = ScriptedReplica("one")
    async with pulse_of(replica) as pulse:
        replica.may_proceed.clear()
        await falls_silent(pulse)
        replica.may_proceed.set()
        await until(lambda: not pulse.is_silent)

        replica.may_proceed.clear()
        async with pulse.answers("one"):
            await asyncio.sleep(1.5 * IMPATIENT.answer_s)


async def test_an_answer_that_lies_unread_while_our_own_loop_stands_still_is_an_answer() -> None:
    class Threaded(PartialReplica):
        """Its answers do not wait for our loop."""

        num_asked = 0

        def Ping(self, request: Any, context: Any) -> Any:
            self.num_asked += 1
            return pb.PingReply()

    it, server = Threaded(), grpc.server(ThreadPoolExecutor(1))
    add_ReplicaServicer_to_server(it, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    channels = Channels(ping_timing=IMPATIENT)
    async with channels.pulse(f"127.0.0.1:{port}").answers("one"):
        for num_asked in range(1, 3):
            while it.num_asked < num_asked:  # turn after turn, so that none has read the answer
                await asyncio.sleep(0)
            time.sleep(1.2 * IMPATIENT.answer_s)
    await channels.close()
    server.stop(None)


async def test_a_peer_that_says_something_soon_after_somebody_waits_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counting(PartialReplica):
        num_asked = 0

        async def Ping(self, request: Any, context: Any) -> Any:
            self.num_asked += 1
            return pb.PingReply()

    it, server = Counting(), grpc.aio.server()
    add_ReplicaServicer_to_server(it, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channels = Channels(ping_timing=PingTiming(ask_after_s=20, answer_s=20))
    pulse = channels.pulse(f"127.0.0.1:{port}")
    monkeypatch.setattr("baton.proto.pulse.FIRST_ASK_S", 0.2)
    async with pulse.answers("one"):
        for _ in range(5):
            await asyncio.sleep(0)  # whoever asks at once has begun to
        pulse.received()
        await asyncio.sleep(0.4)
        assert not it.num_asked
    await channels.close()
    await server.stop(None)


async def test_a_peer_that_speaks_is_not_asked() -> None:
    replica = ScriptedReplica("one")
    replica.may_proceed.clear()
    async with pulse_of(replica) as pulse, pulse.answers("one"):
        for _ in range(20):
            pulse.received()
            await asyncio.sleep(IMPATIENT.answer_s / 20)

        assert not pulse.is_silent


class Faulty(RelayedChannel):
    """Its first call fails as no call should."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._num_calls = 0

    def _current(self) -> grpc.aio.Channel:
        return self._channel

    def _begin(
        self, start: Callable[..., Any], request: Sequence[Any], arguments: Mapping[str, Any]
    ) -> Any:
        self._num_calls += 1
        if self._num_calls == 1:
            raise RuntimeError("a fault of ours")
        return start(*request, **arguments)

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)


async def test_a_fault_in_asking_does_not_keep_a_later_silence_from_whoever_waits() -> None:
    replica = ScriptedReplica("one")
    await replica.start()
    replica.may_proceed.clear()
    async with Faulty(Channels().new(replica.info.address)) as channel:
        pulse = Pulse(channel, IMPATIENT)
        async with asyncio.timeout(120):
            await falls_silent(pulse)
        pulse.close()
    await replica.stop()


class Peer(PeerServicer):
    """It knows no Ping."""

    Pull = PeerServicer.Pull


async def test_a_peer_of_an_earlier_version_answers_by_refusing() -> None:
    server = grpc.aio.server()
    add_PeerServicer_to_server(Peer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channels = Channels(ping_timing=IMPATIENT)
    async with channels.pulse(f"127.0.0.1:{port}").answers("one"):
        await asyncio.sleep(2 * IMPATIENT.answer_s)
    await channels.close()
    await server.stop(None)


class Talking(PrefillServicer, PeerServicer, KvTransferServicer, PartialReplica):
    """Says something to whoever calls, and answers no Ping."""

    async def Ping(self, request: Any, context: Any) -> Any:
        await asyncio.Event().wait()

    async def Prefill(self, request: Any, context: Any) -> Any:
        yield pb.PrefillEvent()

    async def Pull(self, request: Any, context: Any) -> Any:
        yield pb.PullEvent()

    async def Open(self, request_iterator: Any, context: Any) -> Any:
        yield kv_pb2.KvPieces()

    Session = PrefillServicer.Session
    Settle = KvTransferServicer.Settle
    Meet = KvTransferServicer.Meet
    OfferProbe = KvTransferServicer.OfferProbe


INFO = make_replica("one")


def prefill(channels: Channels, peer: ReplicaAddress) -> AsyncIterator[Any]:
    request = PrefillRequest(
        request_id=RequestId("r"),
        transfer_id=TransferId("t"),
        receiver_epoch=INFO.epoch,
        layout=INFO.layout,
        prompt=(1, 2, 3),
        time_left_ms=10_000,
    )
    return GrpcPrefillClient(channels).prefill(peer, request)


def pull(channels: Channels, peer: ReplicaAddress) -> AsyncIterator[Any]:
    patience = SourcePatience()
    client = PeerClient(
        channels, epoch=INFO.epoch, layout=INFO.layout, timeout_s=10.0, patience=patience
    )
    watch = SourceWatch(patience, peer)
    return client.pull(peer, client.request(TransferId("t"), (1, 2, 3), b""), watch)


def pieces(channels: Channels, peer: ReplicaAddress) -> AsyncIterator[Any]:
    request = OpenTransfer(
        transfer_id=TransferId("t"),
        sender_epoch=peer.epoch,
        receiver_epoch=INFO.epoch,
        layout=INFO.layout,
        first_block=0,
    )
    return ControlClient(channels).open(peer.address, request, "grpc")


@pytest.mark.parametrize("call", [prefill, pull, pieces])
async def test_what_a_replica_says_in_a_call_of_another_is_heard(
    call: Callable[[Channels, ReplicaAddress], AsyncIterator[Any]],
) -> None:
    server = grpc.aio.server()
    it = Talking()
    add_ReplicaServicer_to_server(it, server)
    add_PrefillServicer_to_server(it, server)
    add_PeerServicer_to_server(it, server)
    add_KvTransferServicer_to_server(it, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    channels = Channels(ping_timing=IMPATIENT)
    await falls_silent(channels.pulse(address))

    with suppress(BatonError):  # that there was nothing of use in it
        async for _ in call(channels, replace(INFO.endpoint, address=address)):
            pass

    assert not channels.pulse(address).is_silent
    await channels.close()
    await server.stop(None)
