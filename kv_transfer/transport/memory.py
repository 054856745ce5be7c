"""The transport between replicas of one process and one event loop: no copy, no wire.

Switchboard   address -> Line (a connected P)        given to both ends
unplug        cuts every stream of that line, as the crash of P would
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from baton.core.errors import TransferCut
from baton.core.ids import Epoch
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import LentPiece, SendingSide


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    side: SendingSide
    unplugged: asyncio.Event = field(default_factory=asyncio.Event)


class Switchboard:
    """The sending sides, by address. Reused addresses lead to the newest side."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    def plug(self, address: str, side: SendingSide) -> None:
        self.unplug(address)
        self._lines[address] = _Line(side)

    def unplug(self, address: str) -> None:
        line = self._lines.pop(address, None)
        if line is not None:
            line.unplugged.set()

    def has(self, address: str) -> bool:
        return address in self._lines

    def line(self, address: str) -> _Line:
        """Raises TransferCut if nobody is there."""
        try:
            return self._lines[address]
        except KeyError:
            raise TransferCut(f"no replica is plugged in at {address}") from None


class MemoryTransport:
    name = "memory"

    def __init__(self, switchboard: Switchboard) -> None:
        self._switchboard = switchboard

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None:
        """The first opening will tell."""

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        line = self._switchboard.line(address)
        cut = asyncio.ensure_future(line.unplugged.wait())
        try:
            async with aclosing(line.side.pieces(request)) as pieces:
                while (piece := await _next_piece(pieces, cut)) is not None:
                    yield _received(piece)
        finally:
            cut.cancel()

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        return await self._switchboard.line(address).side.settle(request)

    async def close(self) -> None:
        """There is nothing to let go of: lines belong to the switchboard."""


def _received(piece: LentPiece) -> KvPiece:
    return KvPiece(
        transfer_id=piece.transfer_id,
        sender_epoch=piece.sender_epoch,
        receiver_epoch=piece.receiver_epoch,
        plane=piece.plane,
        num_planes=piece.num_planes,
        first_block=piece.first_block,
        views=piece.views,
        checksums=piece.checksums,
        release=piece.give_back,
    )


async def _next_piece(
    pieces: AsyncGenerator[LentPiece, None], cut: asyncio.Future[Any]
) -> LentPiece | None:
    """The next piece, or None at the end. Raises TransferCut when the line is unplugged first."""
    arriving: asyncio.Future[Any] = asyncio.ensure_future(anext(pieces, None))
    is_taken = False
    try:
        await asyncio.wait({arriving, cut}, return_when=asyncio.FIRST_COMPLETED)
        if arriving.done():
            is_taken = True
            piece: LentPiece | None = arriving.result()
            return piece
        raise TransferCut("the replica was unplugged")
    finally:
        if not is_taken:
            arriving.cancel()
            # The generator can be closed only once it rests; its last piece may have come anyway.
            unseen: Any = (await asyncio.gather(arriving, return_exceptions=True))[0]
            if isinstance(unseen, LentPiece):
                unseen.give_back()
