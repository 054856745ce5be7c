"""Pieces over raw TCP: tickets, secrets, and the order in which they are read."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest
from tests.kv_transfer.replicas import LAYOUT
from tests.kv_transfer.transport.control_ends import (
    PreparedSide,
    control_ends,
)
from tests.kv_transfer.transport.tcp.sharing import NO_SECRET, sharing

from baton.core.errors import TransferCut
from baton.kv_transfer.handoff.messages import OpenTransfer
from baton.kv_transfer.handoff.transport import LentPiece, PackedPiece
from baton.kv_transfer.transport.tcp.frames import Ticket, ticket_of
from baton.kv_transfer.transport.tcp.tcp import TcpSending, TcpTransport


async def test_a_piece_is_sent_once_to_who_knows_its_secret() -> None:
    async with sharing() as (it, half, transport):
        request = it.request
        connection = await transport._pool.take(it.address, request)
        async with aclosing(it.side.pieces(request)) as pieces:
            piece = await anext(pieces)
            loan, lent = half._loans.lend(piece)
            ticket = ticket_of(loan)
            memory = memoryview(bytearray(LAYOUT.layer_block_bytes))

            guessed = connection.expect(replace(ticket, secret=NO_SECRET), 1)
            guessed.drop()
            right = connection.expect(ticket, 1)
            await asyncio.to_thread(right.read, [memory])
            again = connection.expect(ticket, 1)
            with pytest.raises(TransferCut, match="0 of piece 1 came"):
                await asyncio.to_thread(again.read, [memory])

            assert bytes(memory) == bytes(piece.views[0])
            lent.give_back()
            assert it.side.back == [0]


async def test_pieces_may_be_read_in_any_order_or_not_at_all() -> None:
    async with sharing() as (it, _, transport):
        async with aclosing(transport.open(it.address, it.request)) as opened:
            pieces = [await anext(opened) for _ in range(4)]
            pieces[1].release()

            found = await asyncio.to_thread(
                lambda: [bytes(pieces[number].views[0])[:1] for number in (2, 0, 3)]
            )

            assert found == [b"\2", b"\0", b"\3"]
            for piece in pieces:
                piece.release()
        await it.side.all_back()


@pytest.mark.parametrize(
    "ticket",
    [
        b"abc",
        Ticket(1, NO_SECRET, 0),
        Ticket(1, NO_SECRET, 1 << 40),
        Ticket(1, NO_SECRET, 64, 48),
        Ticket(1, NO_SECRET, 1 << 28, 1),  # 2 GiB of checksums
    ],
)
async def test_a_ticket_for_what_no_piece_could_be_is_refused(ticket: bytes | Ticket) -> None:
    class Forging(TcpSending):
        async def pack(self, piece: LentPiece, request: OpenTransfer) -> PackedPiece:
            return PackedPiece(ticket=ticket if isinstance(ticket, bytes) else ticket.pack())

    half = Forging()
    async with control_ends(PreparedSide(1), tcp=half) as it:
        transport = TcpTransport(it.client)
        with pytest.raises(TransferCut, match="ticket"):
            await anext(transport.open(it.address, it.request))
        await it.side.all_back()
        await transport.close()
    await half.close()
