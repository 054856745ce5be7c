"""How long a connection to another process of ours stays open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import grpc.aio
import pytest
from tests.kv_transfer.replicas import LAYOUT

from baton.core.clock import ManualClock
from baton.core.errors import Overloaded
from baton.core.ids import ReplicaId, RequestId, TransferId, new_epoch
from baton.core.messages import PrefillRequest
from baton.core.replicas import ReplicaAddress
from baton.decode_service.prefill_client import GrpcPrefillClient
from baton.proto import channels
from baton.proto.channel_options import (
    CHANNEL_OPTIONS,
    LINK_CHANNEL_OPTIONS,
    MAX_MESSAGE_BYTES,
    SERVER_OPTIONS,
    ChannelOptions,
)
from baton.proto.channels import Channels
from baton.proto.replica_pb2_grpc import PrefillServicer, add_PrefillServicer_to_server


@dataclass(eq=False)
class Connection:
    """Of which only calls of one kind are made."""

    address: str
    calls: list[asyncio.Future[None]] = field(default_factory=list)
    is_closed: bool = False

    def stream_stream(self, method: str) -> Callable[[], Any]:
        def call() -> asyncio.Future[None]:
            assert not self.is_closed
            self.calls.append(asyncio.get_running_loop().create_future())
            return self.calls[-1]

        return call

    async def close(self, grace: float | None = None) -> None:
        self.is_closed = True


class Recorded(Channels):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.clock = clock
        self.connections: list[Connection] = []

    def new(self, address: str, options: ChannelOptions = CHANNEL_OPTIONS) -> grpc.aio.Channel:
        self.connections.append(Connection(address))
        return cast(grpc.aio.Channel, self.connections[-1])

    def call(self, address: str) -> None:
        cast(Any, self.to(address)).stream_stream("/open")()

    async def end_calls(self) -> None:
        for connection in self.connections:
            for call in connection.calls:
                call.cancel()
        await asyncio.sleep(0)

    async def opened(self) -> list[str]:
        for _ in range(3):
            await asyncio.sleep(0)
        return sorted(each.address for each in self.connections if not each.is_closed)


async def test_idle_connections_are_bounded_and_one_in_use_is_never_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "MAX_IDLE", 2)
    it = Recorded(ManualClock())
    for address in ("a", "b", "c", "d"):
        it.call(address)
    assert await it.opened() == ["a", "b", "c", "d"]

    await it.end_calls()
    it.call("a")
    it.clock.advance(1.0)
    it.call("e")
    it.call("f")

    assert await it.opened() == ["a", "c", "d", "e", "f"]
    await it.close()
    assert await it.opened() == []


async def test_a_connection_nobody_used_for_long_is_closed_unless_it_is_the_one_asked_for() -> None:
    it = Recorded(ManualClock())
    it.call("a")
    it.call("b")
    await it.end_calls()

    it.clock.advance(channels.IDLE_S)
    it.call("a")
    assert await it.opened() == ["a"]
    assert len(it.connections) == 2

    it.call("b")
    assert await it.opened() == ["a", "b"]


class Unreached(PrefillServicer):
    def Prefill(self, request: Any, context: Any) -> Any:
        raise AssertionError("the message is refused before")

    Session = PrefillServicer.Session


async def test_a_message_beyond_the_limit_is_refused_in_words_an_operator_can_use() -> None:
    small = [("grpc.max_receive_message_length", 1000)]
    server = grpc.aio.server(options=small)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    add_PrefillServicer_to_server(Unreached(), server)
    await server.start()
    it = Channels()
    peer = ReplicaAddress(replica_id=ReplicaId("p"), epoch=new_epoch(), address=address)
    request = PrefillRequest(
        request_id=RequestId("r"),
        transfer_id=TransferId("t"),
        receiver_epoch=new_epoch(),
        layout=LAYOUT,
        prompt=tuple(range(2000)),
        time_left_ms=10_000,
    )

    with pytest.raises(Overloaded, match=r"shorten the prompt \(.* vs\. 1000"):
        await anext(GrpcPrefillClient(it).prefill(peer, request))

    await it.close()
    await server.stop(None)
    assert dict(SERVER_OPTIONS)["grpc.max_receive_message_length"] == MAX_MESSAGE_BYTES > 0


def test_a_silence_of_five_seconds_ends_a_connection_and_one_end_alone_pings() -> None:
    server, *clients = (
        dict(one) for one in (SERVER_OPTIONS, CHANNEL_OPTIONS, LINK_CHANNEL_OPTIONS)
    )

    for end in (server, *clients):
        answer_ms = 5000 - end["grpc.keepalive_time_ms"]
        assert end["grpc.keepalive_timeout_ms"] == end["grpc.http2.ping_timeout_ms"] == answer_ms
    assert [client["grpc.keepalive_time_ms"] for client in clients] == [1000, 2000]
    assert server["grpc.keepalive_time_ms"] > 2000


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("10.0.0.7:8000", "ipv4:10.0.0.7:8000"),
        ("[fe80::1]:8000", "ipv6:[fe80::1]:8000"),
        ("decode-1.example:8000", "decode-1.example:8000"),
    ],
)
def test_an_address_in_numbers_is_looked_up_nowhere(
    monkeypatch: pytest.MonkeyPatch, address: str, target: str
) -> None:
    reached: list[str] = []
    reach = "insecure_channel"
    monkeypatch.setattr(grpc.aio, reach, lambda to, options: reached.append(to))

    Channels().new(address)

    assert reached == [target]
