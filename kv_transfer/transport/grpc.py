"""The transport over gRPC: the bytes of a piece are in its announcement.

Works wherever replicas can reach each other.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from baton.core.block_views import BlockViews
from baton.core.errors import TransferCut, TransportFailed
from baton.core.ids import Epoch
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import LentPiece, PackedPiece
from baton.kv_transfer.transport.control.client import ControlClient
from baton.kv_transfer.transport.control.wire import write_carried
from baton.proto.channel_options import MAX_MESSAGE_BYTES

MAX_CARRIED_BYTES = MAX_MESSAGE_BYTES * 15 // 16
"""The rest is left for checksums and names: a unit of 128 bytes has 8 bytes of checksum."""


class GrpcTransport:
    name = "grpc"

    def __init__(self, control: ControlClient) -> None:
        self._control = control

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None:
        """The first opening will tell."""

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        request = replace(request, joins_planes=True)
        async with aclosing(self._control.open(address, request, self.name)) as announcements:
            async for announced in announcements:
                yield announced.piece(_by_block(announced.data, announced.num_views))

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        return await self._control.settle(address, request)

    async def close(self) -> None:
        """Its connections are the control client's."""


def _by_block(data: memoryview, num_views: int) -> BlockViews:
    size, rest = divmod(len(data), max(1, num_views))
    if rest or not size:
        raise TransferCut(f"a piece of {len(data)} bytes for {num_views} blocks")
    return BlockViews(data, range(0, len(data), size), size)


class GrpcSending:
    max_piece_bytes = 0
    reads_in_place = False
    carry = staticmethod(write_carried)

    async def pack(self, piece: LentPiece, request: OpenTransfer) -> PackedPiece:
        if piece.num_bytes > MAX_CARRIED_BYTES:
            raise TransportFailed(
                f"gRPC carries pieces of at most {MAX_CARRIED_BYTES} bytes, and a block has "
                f"{piece.num_bytes}: lower cache.block_size, or choose another transfer.transport"
            )
        return PackedPiece(data=piece.views)

    async def meet(self, receiver_epoch: Epoch, payload: bytes) -> bytes:
        return b""

    async def close(self) -> None:
        """It holds nothing."""
