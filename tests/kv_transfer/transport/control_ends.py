"""A sender of prepared pieces behind a real control stream, and raw access to that stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
from tests.kv_transfer.replicas import LAYOUT, TRANSFER

from baton.core.ids import Epoch, new_epoch
from baton.kv_transfer.handoff.messages import OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import LentPiece, PackedPiece, SendingHalf
from baton.kv_transfer.transport.control.client import ControlClient
from baton.kv_transfer.transport.control.servicer import KvTransferServicer
from baton.kv_transfer.transport.control.wire import open_to_proto
from baton.proto import kv_pb2 as pb
from baton.proto.channels import Channels, listen, new_server

RECEIVER = new_epoch()


class Tickets:
    """A sending half whose tickets are the numbers of the pieces."""

    max_piece_bytes = 0
    carry = None
    reads_in_place = False

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.packing: asyncio.Event | None = None
        """Set: packing lasts until then."""
        self.is_closed = False

    async def pack(self, piece: LentPiece, request: OpenTransfer) -> PackedPiece:
        if self.packing is not None:
            await self.packing.wait()
        if self.error is not None:
            raise self.error
        return PackedPiece(ticket=piece.first_block.to_bytes(4, "little"))

    async def meet(self, receiver_epoch: Epoch, payload: bytes) -> bytes:
        if self.error is not None:
            raise self.error
        return payload[::-1]

    async def close(self) -> None:
        self.is_closed = True


@dataclass(eq=False)
class PreparedSide:
    """Lends `num_pieces` pieces to whoever opens, then ends, fails or goes on forever."""

    num_pieces: int
    error: BaseException | None = None
    is_endless: bool = False
    tells_last: bool = False
    """Whether its last piece says that none follows."""
    piece_bytes: int = LAYOUT.layer_block_bytes
    epoch: Epoch = field(default_factory=new_epoch)
    num_lent: int = 0
    back: list[int] = field(default_factory=list)
    """Pieces given back, in order."""
    given_up: list[int] = field(default_factory=list)
    """Pieces that D gets no more of, likewise."""
    num_open: int = 0

    async def pieces(self, request: OpenTransfer) -> AsyncGenerator[LentPiece, None]:
        self.num_open += 1
        try:
            for number in range(request.first_block, self.num_pieces):
                self.num_lent += 1
                yield self._piece(request, number)
            if self.is_endless:
                await asyncio.Event().wait()
            if self.error is not None:
                raise self.error
        finally:
            self.num_open -= 1

    async def settle(self, request: SettleTransfer) -> Outcome:
        if self.error is not None:
            raise self.error
        return Outcome.UNKNOWN

    def _piece(self, request: OpenTransfer, number: int) -> LentPiece:
        held = [number]

        def give_back() -> None:
            while held:
                self.back.append(held.pop())

        return LentPiece(
            transfer_id=request.transfer_id,
            sender_epoch=self.epoch,
            receiver_epoch=request.receiver_epoch,
            plane=0,
            first_block=number,
            views=(memoryview(bytes([number % 256]) * self.piece_bytes),),
            blocks=(number,),
            checksums=bytes(16),
            give_back=give_back,
            give_up=partial(self.given_up.append, number),
            is_last=self.tells_last and number == self.num_pieces - 1,
        )

    async def all_back(self) -> None:
        """Wait until every piece that was lent has been given back."""
        async with asyncio.timeout(60):
            while len(self.back) < self.num_lent or self.num_open:
                await asyncio.sleep(0.001)


@dataclass(eq=False)
class ControlEnds:
    side: PreparedSide
    half: Tickets
    address: str
    client: ControlClient
    channels: Channels
    servicer: KvTransferServicer
    server: grpc.aio.Server

    @property
    def request(self) -> OpenTransfer:
        return OpenTransfer(
            transfer_id=TRANSFER,
            sender_epoch=self.side.epoch,
            receiver_epoch=RECEIVER,
            layout=LAYOUT,
            first_block=0,
        )

    def raw_call(self) -> Any:
        """A stream on which the test writes what it likes."""
        return self.channels.to(self.address).stream_stream(
            "/baton.kv.v1.KvTransfer/Open", request_serializer=pb.OpenMessage.SerializeToString
        )()

    def opening(self, transport: str = "tickets") -> pb.OpenMessage:
        return pb.OpenMessage(open=open_to_proto(self.request, transport))


@asynccontextmanager
async def control_ends(side: PreparedSide, **halves: SendingHalf) -> AsyncIterator[ControlEnds]:
    tickets, channels, server = Tickets(), Channels(), new_server()
    servicer = KvTransferServicer(side, side.epoch, {"tickets": tickets, **halves})
    servicer.serve(server)
    address = f"127.0.0.1:{listen(server, '127.0.0.1:0')}"
    await server.start()
    try:
        client = ControlClient(channels)
        yield ControlEnds(side, tickets, address, client, channels, servicer, server)
    finally:
        await channels.close()
        await server.stop(None)
