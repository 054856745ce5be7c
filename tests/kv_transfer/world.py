"""P and D, each with an engine's thread, joined by any of the transports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import grpc
import pytest
from tests.kv_transfer.replicas import (
    LAYOUT,
    PROMPT,
    TRANSFER,
    DecodeReplica,
    PrefillReplica,
    settling,
)

from baton.core.ids import Epoch, TransferId
from baton.core.kv_arena import Introduce
from baton.core.kv_layout import KvLayout
from baton.core.owner_thread import OneThread
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.reservation import Reservation
from baton.kv_transfer.handoff.transport import SendingHalf, Transport
from baton.kv_transfer.receiving.fetch import FetchConfig, Fetcher, TransferReport
from baton.kv_transfer.receiving.receiver import ReceiverConfig
from baton.kv_transfer.sending.outbox import Outbox
from baton.kv_transfer.sending.sender import SenderConfig
from baton.kv_transfer.transport.auto.auto import AutoTransport
from baton.kv_transfer.transport.auto.probe import ProbeOffers
from baton.kv_transfer.transport.control.servicer import KvTransferServicer
from baton.kv_transfer.transport.control.socket_lines import OpensLines
from baton.kv_transfer.transport.memory import Switchboard
from baton.kv_transfer.transports import (
    TransportParts,
    create_sending_halves,
    create_transport,
    usable_transports,
)
from baton.proto.channel_options import SERVER_OPTIONS

NUM_BLOCKS = LAYOUT.num_blocks_for(len(PROMPT))
KV_BYTES = NUM_BLOCKS * LAYOUT.block_bytes
QUICK = FetchConfig(reopen_delay_s=0.001, settle_timeout_s=1.0, max_bytes_at_once=0)
"""All is written on threads: most can go wrong there. `PATIENT` writes at once."""
PATIENT = FetchConfig(reopen_delay_s=0.001, max_reopened=14)
"""Up to 16 s in all. gRPC does not try a refused connection again within 100 ms: however often it
is opened anew before, the answer is that of the first time."""

each_transport = pytest.mark.parametrize("name", ["auto", *usable_transports()])


Alter = Callable[[int, KvPiece], KvPiece]
"""Given how many pieces there were so far, this one included; may raise."""


class Altering:
    """A transport that does something to every piece on its way."""

    def __init__(self, inner: Transport, alter: Alter) -> None:
        self.name = inner.name
        self.opened: list[OpenTransfer] = []
        self._inner = inner
        self._alter = alter
        self._num_pieces = 0

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None:
        await self._inner.check(address, sender, receiver)

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        self.opened.append(request)
        async with aclosing(self._inner.open(address, request)) as pieces:
            async for piece in pieces:
                self._num_pieces += 1
                try:
                    altered = self._alter(self._num_pieces, piece)
                except BaseException:
                    piece.release()
                    raise
                yield altered

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        return await self._inner.settle(address, request)

    async def close(self) -> None:
        await self._inner.close()


def unaltered(number: int, piece: KvPiece) -> KvPiece:
    return piece


class World:
    """P and D, each with an engine's thread, joined by one transport."""

    def __init__(
        self,
        name: str,
        alter: Alter,
        prefill: PrefillReplica,
        decode: DecodeReplica,
        fetching: FetchConfig = QUICK,
        *,
        joins_planes: bool = False,
    ) -> None:
        self.name = name
        self.prefill, self.decode = prefill, decode
        self.decode.sender_layout = prefill.layout
        self.decode.sender_runs = tuple(self.prefill.pool.head_runs)
        self.on_p, self.on_d = OneThread(), OneThread()
        max_piece_bytes = 1 << 20 if joins_planes else 2 * LAYOUT.layer_block_bytes
        self.outbox = Outbox(
            self.prefill.sender, self.on_p, max_piece_bytes=max_piece_bytes, max_bytes_at_once=0
        )
        self.switchboard = Switchboard()
        self.address = "prefill"
        self._server: grpc.aio.Server | None = None
        self.halves: list[SendingHalf] = []
        arena = self.decode.cache.arena
        self.parts = TransportParts(switchboard=self.switchboard, device=arena.device, arena=arena)
        self.inner = create_transport(name, self.parts)
        self.transport = Altering(self.inner, alter)
        self.fetcher = Fetcher(
            self.decode.receiver,
            self.on_d,
            self.transport,
            clock=self.decode.clock,
            config=fetching,
        )

    async def start_serving(self) -> None:
        self.decode.sender_address = self.address
        if self.name == "memory":
            self.switchboard.plug(self.address, self.outbox)
            return
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        halves = create_sending_halves(self.parts, self.prefill.cache.arena)
        self.halves.extend(halves.values())
        for half in halves.values():
            half.max_piece_bytes = 0  # the outbox's pieces: see above
        probes = ProbeOffers(self.prefill.pool, self.prefill.sender, self.on_p)
        sender = self.prefill.sender
        servicer = KvTransferServicer(self.outbox, sender.epoch, halves, probes)
        servicer.serve(self._server)
        is_first = self.address == "prefill"
        port = self._server.add_insecure_port("127.0.0.1:0" if is_first else self.address)
        self.address = self.decode.sender_address = f"127.0.0.1:{port}"
        await self._server.start()

    async def stop_serving(self) -> None:
        self.switchboard.unplug(self.address)
        if self._server is not None:
            await self._server.stop(grace=None)
        for half in self.halves:
            if isinstance(half, OpensLines):  # these end with the server, as a replica's do
                await half.close()

    async def grant(self, transfer_id: TransferId = TRANSFER) -> Reservation:
        """P takes the prompt in, D reserves blocks for it."""
        sender, receiver = self.prefill.sender.epoch, self.decode.receiver.epoch
        assert await self.on_p.call(lambda: self.prefill.grant(receiver, transfer_id))
        reservation = await self.on_d.call(lambda: self.decode.reserve(sender, transfer_id))
        assert reservation is not None
        return reservation

    async def fetch(self, reservation: Reservation) -> TransferReport:
        return await self.fetcher.fetch(reservation)

    async def compute(
        self, num_tokens: int | None = None, transfer_id: TransferId = TRANSFER
    ) -> None:
        """P computes so many tokens, or the whole prompt, which then leaves its engine."""
        await self.on_p.call(lambda: self.prefill.compute(transfer_id, num_tokens))
        if num_tokens is None:
            await self.on_p.call(lambda: self.prefill.finish(transfer_id))

    async def has_arrived(self, num_bytes: int) -> None:
        async with asyncio.timeout(60):
            while self.decode.receiver.counters.num_bytes < num_bytes:
                await asyncio.sleep(0.001)

    async def ask(self, outcome: Outcome | None = None) -> Outcome:
        request = settling(self.prefill, self.decode, outcome)
        return await self.transport.settle(self.address, request)

    async def assert_nothing_is_left(self, *, is_p_told: bool = True) -> None:
        """Neither side holds anything for any transfer, and no block is lost."""
        await self.fetcher.close()
        if isinstance(self.inner, AutoTransport):
            await self.inner.measured()
        if not is_p_told:
            await self.on_p.call(lambda: self.prefill.sender.expire(float("inf")))
        async with asyncio.timeout(60):
            # A last read or write may still be under way, in a thread of its own.
            while self.prefill.sender.lease_ids or await self.on_d.call(
                lambda: self.decode.receiver.lease_ids
            ):
                await asyncio.sleep(0.001)
        for report in (
            await self.on_p.call(self.prefill.audit),
            await self.on_d.call(self.decode.audit),
        ):
            assert report.violations == ()
            assert report.leased == report.quarantined == 0


@asynccontextmanager
async def connected(  # noqa: PLR0913 - what both sides are like, each by name
    name: str,
    *,
    alter: Alter = unaltered,
    layout: KvLayout = LAYOUT,
    decode_layout: KvLayout | None = None,
    fetching: FetchConfig = QUICK,
    joins_planes: bool = False,
    device: str = "cpu",
) -> AsyncIterator[World]:
    """With P's layout on D as well, unless D has another; the KV of both is on `device`.

    `joins_planes`: a piece is of all planes that are alike, where the transport takes such.
    """
    # Small readings and pieces, so that a prompt is several of each.
    limits = SenderConfig() if joins_planes else SenderConfig(max_blocks_per_read=4)
    prefill = PrefillReplica(config=limits, layout=layout, device=device)
    decode = DecodeReplica(layout=decode_layout or layout, device=device)
    it = World(name, alter, prefill, decode, fetching, joins_planes=joins_planes)
    async with serving(it):
        yield it


@asynccontextmanager
async def connected_ranks(
    name: str,
    layout: KvLayout,
    num_ranks: tuple[int, int],
    *,
    alter: Alter = unaltered,
    decode_layout: KvLayout | None = None,
    introduce: Introduce | None = None,
) -> AsyncIterator[World]:
    """`num_ranks`: tensor ranks of P and of D. Pieces are of all planes, and each pair of ranks may
    have a stream of its own. `introduce`: see `PrefillReplica`."""
    prefill = PrefillReplica(layout=layout, num_ranks=num_ranks[0], introduce=introduce)
    split = ReceiverConfig(min_stream_bytes=1)
    decode = DecodeReplica(layout=decode_layout or layout, config=split, num_ranks=num_ranks[1])
    async with serving(World(name, alter, prefill, decode, joins_planes=True)) as it:
        yield it


@asynccontextmanager
async def serving(it: World) -> AsyncIterator[World]:
    await it.start_serving()
    try:
        yield it
    finally:
        await it.fetcher.close()
        await it.transport.close()
        await it.parts.channels.close()
        await it.stop_serving()
        for half in it.halves:
            await half.close()
        it.on_p.stop()
        it.on_d.stop()
