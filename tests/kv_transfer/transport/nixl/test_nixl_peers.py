"""Which peers NIXL's agent knows, and for how long: the streams of one peer share it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import cast

import msgspec
import pytest
from msgspec import structs
from tests.kv_transfer.replicas import LAYOUT
from tests.kv_transfer.transport.nixl.test_nixl import Handle, ObedientAgent, Source

from baton.core.errors import TransferCut, TransportFailed
from baton.core.ids import Epoch, TransferId
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer
from baton.kv_transfer.transport.block_tickets import BlockTicket
from baton.kv_transfer.transport.control.client import AnnouncedPiece, ControlClient
from baton.kv_transfer.transport.nixl import buffers as nixl_buffers
from baton.kv_transfer.transport.nixl import nixl
from baton.kv_transfer.transport.nixl.arena import Arena
from baton.proto import kv_pb2 as pb


class QuickAgent(ObedientAgent):
    """Every read is over at once."""

    def transfer(self, handle: Handle) -> str:
        handle.complete()
        return super().transfer(handle)


@dataclass(eq=False)
class Announcing:
    """Introduces any P, and announces a piece of it, or its end, when the test says so."""

    source: Source = field(default_factory=lambda: Source(7))
    streams: dict[str, asyncio.Queue[Exception | None]] = field(default_factory=dict)
    """By transfer."""
    num_met: int = 0
    lies: dict[str, object] = field(default_factory=dict)
    """Fields of the arena that are told otherwise than they are."""

    async def meet(self, address: str, transport: str, sender: Epoch, receiver: Epoch) -> bytes:
        self.num_met += 1
        arena = Arena(sender.encode(), [self.source.address], 1, [1000], "DRAM", 0)
        return msgspec.msgpack.encode(structs.asdict(arena) | self.lies)

    async def open(
        self, address: str, request: OpenTransfer, transport: str
    ) -> AsyncGenerator[AnnouncedPiece, None]:
        told = self.streams.setdefault(request.transfer_id, asyncio.Queue())
        while (error := await told.get()) is None:
            ticket = BlockTicket(0, 1000, [0]).pack()
            message = pb.KvPiece(num_blocks=1, ticket=ticket)
            yield AnnouncedPiece(message=message, data=memoryview(b""), take=lambda: None)
        raise error

    def announce(self, transfer_id: str) -> None:
        self.streams.setdefault(transfer_id, asyncio.Queue()).put_nowait(None)

    def cut(self, transfer_id: str, error: TransferCut) -> None:
        self.streams[transfer_id].put_nowait(error)


@dataclass
class Met:
    control: Announcing = field(default_factory=Announcing)
    agent: QuickAgent = field(default_factory=QuickAgent)
    transport: nixl.NixlTransport = field(init=False)

    def __post_init__(self) -> None:
        control = cast(ControlClient, self.control)
        self.transport = nixl.NixlTransport(control, lambda name: self.agent)

    def stream(self, transfer_id: str, sender: str = "p") -> Arriving:
        request = OpenTransfer(
            transfer_id=TransferId(transfer_id),
            sender_epoch=Epoch(sender),
            receiver_epoch=Epoch("d"),
            layout=LAYOUT,
            first_block=0,
        )
        return Arriving(self, transfer_id, self.transport.open("p:1", request))


@dataclass
class Arriving:
    met: Met
    transfer_id: str
    pieces: AsyncGenerator[KvPiece, None]

    async def held(self) -> KvPiece:
        """A piece is announced, and comes."""
        self.met.control.announce(self.transfer_id)
        async with asyncio.timeout(60):
            return await anext(self.pieces)

    async def next(self) -> None:
        (await self.held()).release()

    async def cut(self, error: TransferCut | None = None) -> None:
        self.met.control.cut(self.transfer_id, error or TransferCut("chaos"))
        with pytest.raises(TransferCut):
            await anext(self.pieces)


RANK = {
    "agent": 0,
    "planes": [0],
    "mem_type": "DRAM",
    "device": 0,
    "block_bytes": [1000],
    "starts": [0],
}


@pytest.mark.parametrize(
    "lies",
    [
        {"planes": []},
        {"agents": [b"p"], "ranks": [RANK | {"agent": 1}]},
        {"agents": [b"p"], "ranks": [RANK | {"agent": -1}]},
        {"agents": [b"p"], "ranks": [RANK | {"starts": []}]},
        {"agents": [b"p"], "ranks": [RANK | {"starts": [-8]}]},
    ],
)
async def test_a_peer_that_tells_of_memory_as_none_can_be_is_not_read_from(
    lies: dict[str, object],
) -> None:
    it = Met(Announcing(lies=lies))
    it.control.streams["kv-1"] = asyncio.Queue()
    it.control.cut("kv-1", TransferCut("it was opened"))

    with pytest.raises(TransportFailed, match="an answer that"):
        await anext(it.stream("kv-1").pieces)
    await it.transport.close()


async def test_a_cut_stream_leaves_the_peer_to_its_siblings_and_is_met_anew_afterwards() -> None:
    it = Met()
    first, second = it.stream("kv-1"), it.stream("kv-2")
    await first.next()
    await second.next()

    await first.cut()
    await second.next()
    third = it.stream("kv-3")
    await third.next()
    assert (it.agent.peers, it.control.num_met) == ({"p"}, 1)

    await third.pieces.aclose()
    await second.cut()
    await it.stream("kv-4").next()  # knows nothing of what came before
    assert it.control.num_met == 2
    await it.transport.close()


async def test_nobody_begins_on_a_connection_that_has_failed_but_who_reads_over_it_goes_on() -> (
    None
):
    it = Met()
    first, second = it.stream("kv-1"), it.stream("kv-2")
    await first.next()
    await second.next()

    await first.cut(TransportFailed("NIXL_ERR_BACKEND"))
    third = it.stream("kv-3")
    beginning = asyncio.create_task(third.next())
    await second.next()
    assert (beginning.done(), it.control.num_met) == (False, 1)

    await second.pieces.aclose()
    await beginning
    assert it.control.num_met == 2
    await it.transport.close()


async def test_want_of_this_replicas_own_memory_cuts_a_stream_and_is_no_fault_of_the_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nixl_buffers, "MAX_BUFFER_BYTES", nixl_buffers.MIN_BUFFER_BYTES)
    it = Met()
    first, second = it.stream("kv-1"), it.stream("kv-2")
    held = await first.held()

    with pytest.raises(TransferCut, match="buffers are in use") as cut:
        await second.next()

    assert not isinstance(cut.value, TransportFailed)
    held.release()
    await it.stream("kv-3").next()
    await first.next()
    assert (it.agent.peers, it.control.num_met) == ({"p"}, 1)
    await it.transport.close()


async def test_a_peer_that_is_being_read_from_is_not_the_one_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nixl, "MAX_PEERS", 1)
    it = Met()
    first = it.stream("kv-1", "p")
    await first.next()
    async with aclosing(it.stream("kv-2", "q").pieces):
        other = it.stream("kv-3", "r")
        await other.next()

        await first.next()

        await other.pieces.aclose()
    await first.next()
    assert it.agent.peers == {"p"}
    await it.transport.close()
